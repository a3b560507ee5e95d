"""Shapes of secrets: by the name a text is given, by what it looks like, by the environment."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise

HIDDEN = "***"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_STRONG = _set(
    "secret secrets password passwords passwd passphrase pwd apikey apikeys credential "
    "credentials bearer authorization authtoken accesstoken privatekey secretkey"
)
_KEYS = _set(  # words that make a "key" a secret
    "api access private secret auth signing encryption account storage license licence hmac ssh "
    "wandb openai anthropic aws azure gcp"
)
_OWNERS = _set(  # words that make a "token" a secret
    "auth access api hf github gh gitlab bearer refresh session slack wandb hub bot security "
    "personal login oauth csrf jwt aws azure gcp google huggingface kaggle telegram jupyter "
    "deploy npm pypi"
)
_ABOUT = _set(  # last words of names that speak about a secret and hold none
    "file path dir folder field column col env var name url uri prefix suffix pattern regex len "
    "length size count type ids id index idx label hint prompt placeholder header policy mode "
    "ttl limit timeout param kind provider manager sock class re rate"
)
_HASHES = _set(
    "hash hashes sha sha1 sha256 sha512 md5 digest checksum commit revision rev etag uuid "
    "fingerprint blake2b crc"
)
_TAME = _set("basic digest none null true false auto default required optional")
_SHORTEST_TOKEN = 6  # characters of a bare `token = "..."` that has a digit
_LONG_TOKEN = 16  # one without
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
_MARKER = re.compile(r"[<\[({|#@▁Ġ$%].*|.*[>\])}|]|\**|x*|\.*", re.DOTALL)
_HOLDER = re.compile(r"(?i)\s*|your[-_ ].*|.*change[-_ ]?me.*|.*(placeholder|redacted|dummy).*")
_IDENTIFIER = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*(?:[_-]\d+)?")
_EDGE = r"(?<![A-Za-z0-9_])"
_KNOWN = re.compile(
    _EDGE + r"(?:hf_[A-Za-z0-9]{16,}|sk-ant-[\w-]{8,}|sk-(?=[\w-]*\d)[\w-]{20,}"
    r"|[srp]k_(?:live|test)_\w{10,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}|xox[abeprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]*|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{20,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_[0-9a-f]{32,}|r8_[A-Za-z0-9]{30,}|wandb_v1_\w{20,}"
    r"|(?i:bearer) (?=[\w.-]*\d)[\w.-]{16,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----)?"
    r"|AccountKey=[\w+/=]{20,}"
)
_LOGIN = re.compile(  # %s and the word itself stand for what comes later
    r"(?<![\w+.-])([A-Za-z][\w+.-]{0,20}://[^\s/:@'\"]*:)(?!%[sr(]|(?:pass(?:word|wd)?|pwd?|secret|token)@)"
    r"([^\s/@'\"{}<>$*]+)(?=@)"
)
_DENSE = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/=_-]{20,120}(?![\w+/=.-])")
_NAMED = re.compile(r"""(?<![\w-])([A-Za-z_][\w-]*)(['"]?\]?\s*[=:]\s*b?)(['"])([^'"\n]+)\3""")
_LEAST_BITS = 3.6  # Shannon entropy of a character
_LEAST_CHANGES = 0.5  # of all neighbours, those of different classes of characters
_LEAST_PIECE = 10  # characters between two dashes, on average; names have shorter words
_LONGEST_KEY = 120  # characters; what is longer is data, as a picture in base64
_LEAST_VARIABLE = 8  # characters of a variable of the environment


def words_of(name: str) -> list[str]:
    """Split a name into lower-case words: `hfToken` and `HF_TOKEN` both give hf, token."""
    return [word.lower() for word in _WORDS.findall(name)]


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Say whether a text of this name is a secret, whatever it looks like.

    A bare `token` is none: it may be a piece of a text, and its value decides.
    """
    words = words_of(name)
    if not words or words[-1] in _ABOUT:
        return False
    if _STRONG.intersection(words) or _is_key(words):
        return True
    return _is_token(words) and (bool(_OWNERS.intersection(words)) or name == "TOKEN")


def _is_key(words: list[str]) -> bool:
    return any(
        second in ("key", "keys") and first in _KEYS for first, second in pairwise(words)
    ) or (words[-1] in ("cookie", "cookies") and "session" in words)


def _is_token(words: list[str]) -> bool:
    return words[-1] == "token"


def is_secret(name: str, text: str) -> bool:
    """Say whether a text is a secret, by the name it has (which may be empty) or by its look."""
    if _HOLDER.fullmatch(text) or text.lower() in _TAME:
        return False
    if looks_secret(text, dense=not is_of_hash(words_of(name))):
        return True
    if not name or _MARKER.fullmatch(text):
        return False
    return _is_secret_by_name(name, text)


def is_of_hash(words: list[str]) -> bool:
    """Say whether a name tells of a hash, or of the id of something public, as a shared file."""
    return bool(_HASHES.intersection(words)) or words[-1:] in (["id"], ["ids"])


def _is_secret_by_name(name: str, text: str) -> bool:
    words = words_of(name)
    if is_secret_name(name):
        return not (words[-1] == "pwd" and text[:1] in ("/", "~", "."))
    if not words or words[-1] in _ABOUT:
        return False
    if words[-1] in ("key", "auth", "token") and _HEX.fullmatch(text):
        return True
    bare = words in (["token"], ["my", "token"], ["cookie"], ["auth"])
    if not bare or " " in text or _IDENTIFIER.fullmatch(text):
        return False
    numbered = any(map(str.isdigit, text))
    return len(text) >= (_SHORTEST_TOKEN if numbered else _LONG_TOKEN)


def looks_secret(text: str, *, dense: bool = True) -> bool:
    """Say whether a text holds a secret by its look alone.

    Args:
        text: any.
        dense: a random-looking text of 20 to 120 characters counts; longer ones are data, and
            those of one case, as hexadecimal hashes, do not look random.
    """
    if _KNOWN.search(text) or _LOGIN.search(text):
        return True
    if len(text) >= _LEAST_VARIABLE and any(value in text for value in _variables()):
        return True
    return dense and len(text) <= _LONGEST_KEY and _is_dense(text.strip())


def _is_dense(text: str) -> bool:
    if not _DENSE.fullmatch(text):
        return False
    pieces = re.findall(r"[A-Za-z0-9]+", text)
    text = "".join(pieces)
    if len(text) < _LEAST_PIECE * len(pieces):
        return False
    kinds = ["0" if c.isdigit() else "A" if c.isupper() else "a" for c in text]
    changes = sum(a != b for a, b in pairwise(kinds))
    if not {"0", "A", "a"} <= set(kinds) or changes < _LEAST_CHANGES * (len(text) - 1):
        return False
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares) >= _LEAST_BITS


def _variables() -> list[str]:
    """Give the values of the environment's secrets, the longest first."""
    found = {
        value
        for name, value in os.environ.items()
        if len(value) >= _LEAST_VARIABLE
        and is_secret_name(name)
        and _is_secret_by_name(name, value)
    }
    found -= _STRONG
    return sorted(found, key=lambda value: (-len(value), value))


def scrubbed(text: str) -> str:
    """Replace the secrets in a text by three asterisks.

    Examples:
        >>> scrubbed("login to https://me:pa55word@example.org failed")
        'login to https://me:***@example.org failed'
    """
    for value in _variables():
        text = text.replace(value, HIDDEN)
    text = _LOGIN.sub(rf"\1{HIDDEN}", _KNOWN.sub(HIDDEN, text))
    text = _NAMED.sub(_hidden_value, text)
    return _DENSE.sub(lambda match: HIDDEN if _is_dense(match[0]) else match[0], text)


def _hidden_value(match: re.Match[str]) -> str:
    name, between, quote, value = match.groups()
    return f"{name}{between}{quote}{HIDDEN}{quote}" if is_secret(name, value) else match[0]
