"""Links: the address of a page comes from outside; only one of the web is shown as a link."""

from __future__ import annotations

import re

_LONGEST = 300
# No name before the host: what is shown may be saved, and a name is no part of a page.
_PAGE = re.compile(r"https?://[A-Za-z0-9_.:\[\]-]+([/?#][!-~]*)?", re.IGNORECASE)


def page_link(address: object) -> str | None:
    """Give the address of a web page; None where it is none that may be a link."""
    if not isinstance(address, str) or len(address) > _LONGEST:
        return None
    return address if _PAGE.fullmatch(address) else None
