"""Pictures of pages and notebooks that follow the theme of the site."""

import re

_PICTURE = re.compile(
    r'<picture>\s*<source .*srcset="(.+)">\s*<img src="(.+)" alt="(.+)">\s*</picture>'
)
_SHOWN = "```{{image}} {}\n:class: only-{}\n:alt: {}\n```\n"


def themed(text: str) -> str:
    """Have the page's theme choose each picture: `<picture>` goes by that of the system."""
    return _PICTURE.sub(
        lambda found: (
            _SHOWN.format(found[2], "light", found[3]) + _SHOWN.format(found[1], "dark", found[3])
        ),
        text,
    )
