"""Secrets in text: by the name a text is given, by what it looks like, by what is known."""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import json
import math
import os
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from .argument_names import NamesInText
from .source import defaults_in, last_name, lines_of, tree_of

HIDDEN = "***"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_STRONG = _set(
    "secret secrets password passwords passwd passphrase passcode passwort pwd psw pswd passw "
    "passwrd kennwort contrasena senha creds userpass apikey apikeys "
    "credential credentials bearer authorization authtoken accesstoken privatekey secretkey"
)
# How one word ends that is made of two.
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "accesskey", "authkey")
_KEYS = _set(  # words that make a "key" a secret
    "api access private secret auth signing encryption account storage license licence hmac ssh "
    "wandb openai anthropic aws azure gcp master fernet consumer subscription application rsa gpg "
    "pgp aes cipher stripe"
)
_OWNERS = _set(  # words that make a "token" a secret
    "auth access api hf github gh gitlab bearer refresh session slack wandb hub bot security "
    "personal login oauth csrf jwt aws azure gcp google huggingface kaggle telegram jupyter "
    "deploy npm pypi sas client app user service account secret private master root admin vault "
    "openai replicate cohere mistral notion dropbox sentry"
)
_LOGINS = _set("db database user admin root login mail email smtp ftp sftp ssh sql my mysql pg")
_WEAK = _set("key keys token tokens auth cookie cookies jwt pat dsn sig signature session sid sas")
_ABOUT = _set(  # last words of names that speak about a secret and hold none
    "file path dir folder field column col env var name url uri prefix suffix pattern regex len "
    "length size count type ids id index idx label hint prompt placeholder header policy mode "
    "ttl limit timeout param kind provider manager sock class re rate"
)
_HASHES = _set(
    "hash hashes sha sha1 sha256 sha512 md5 digest checksum commit revision rev etag uuid "
    "fingerprint blake2b crc"
)
_TAME = _set(
    "basic digest none null true false auto default required optional str string bytes int float "
    "bool any text hidden empty self user username pass changeme bearer token apikey negotiate"
)
_SHORTEST_TOKEN = 6  # characters of a bare `token = "..."` that has a digit
_SHORTEST_SIGNATURE = 8  # of one in an address
_LONG_TOKEN = 16  # one without
_HEX = re.compile(r"[0-9a-fA-F]{32,}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MARKER = re.compile(r"[<\[({|#@▁Ġ$%].*|.*[>\])}|]|\**|x*|\.*", re.DOTALL)
_HOLDER = re.compile(r"(?i)\W{0,3}|your[-_ ].*|.*change[-_ ]?me.*|.*(placeholder|redacted|dummy).*")
_IDENTIFIER = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*(?:[_-]\d+)?")
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9_])(?:hf_[A-Za-z0-9]{16,}|sk-ant-[\w-]{8,}|sk-(?=[\w-]{0,80}\d)[\w-]{20,}"
    r"|[srp]k_(?:live|test)_\w{10,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|gl(?:pat|ptt|dt|rt|ft|soat)-[\w-]{12,}"
    r"|(?:xox[abeprs]|xapp)-[\w-]{10,}"
    r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]*|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{20,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|do[opr]_v1_[0-9a-f]{32,}|r8_[A-Za-z0-9]{30,}|wandb_v1_\w{20,}"
    r"|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|dapi[0-9a-f]{32}|gsk_[A-Za-z0-9]{30,}"
    r"|nvapi-[\w-]{30,}|xai-[A-Za-z0-9]{40,}|pplx-[A-Za-z0-9]{30,}|hvs\.[\w-]{20,}"
    r"|dckr_pat_[\w-]{20,}|lin_api_[A-Za-z0-9]{30,}|ntn_[A-Za-z0-9]{30,}|ATATT3[\w=-]{20,}"
    r"|PMAK-[0-9a-f-]{40,}|glsa_\w{30,}|sbp_[0-9a-f]{40}|tgp_v1_[\w-]{30,}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{40,}|\d{8,10}:AA[\w-]{30,}"
    r"|(?i:bearer) {1,3}(?=[\w.~+/=-]{0,200}\d)(?P<bearer>[\w.~+/=-]{8,}))"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----)?"
    r"|AccountKey=[\w+/=]{20,}"
)
_LOGIN = re.compile(  # %s and the word itself stand for what comes later
    r"(?<![\w+.-])[A-Za-z][\w+.-]{0,20}://[^\s/:@'\"]{0,100}:"
    r"(?!%[sr(]|(?i:pass(?:word|wd)?|pwd?|secret|token|key|your[-_]\w{1,40}|x+|\.+)@|\d{1,5}/)"
    r"(?P<secret>[^\s@'\"{}<>$*]{1,300})(?=@)"
)
_NETLOC = re.compile(  # a whole text, as a part of an address
    r"(?!(?i:mailto|e-?mail|to|from|cc|sip|xmpp)\b)[\w.-]{1,60}:(?P<secret>[^\s:/@]{4,100})"
    r"@(?:localhost|\d+(?:\.\d+){3}|(?:[\w-]+\.)+[A-Za-z]{2,})?(?::\d+)?(?:/\S*)?\Z"
)
_USER = re.compile(
    r"://(?P<secret>(?=[\w-]{0,100}\d)(?=[\w-]{0,100}[A-Za-z])[\w-]{16,120})(?=[:@])"
)
_QUERY = re.compile(r"[?&#;](?P<name>[A-Za-z][\w.-]{0,60})=(?P<secret>[^\s&#'\"<>{}$*\\]{3,2000})")
_HOOK = re.compile(
    r"(?:hooks\.slack\.com/(?:services|workflows|triggers)"
    r"|discord(?:app)?\.com/api/(?:v\d+/)?webhooks|webhook\.office\.com/webhookb2"
    r"|hooks\.zapier\.com/hooks/catch|maker\.ifttt\.com/trigger|outlook\.office\.com/webhook"
    r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook|api\.telegram\.org/(?:file/)?bot)"
    r"/?(?P<secret>[^\s'\"<>{}$\\]{8,400})"
)
_BASIC = re.compile(r"(?i:basic) {1,3}(?P<secret>[A-Za-z0-9+/]{8,400}={0,2})(?![\w+/=])")
_NAME = r"(?<![\w-])(?P<name>[A-Za-z_][\w.-]{0,60})"
_QUOTED = re.compile(
    _NAME + r"(?:\\?['\"])?\]?[ \t]{0,3}[=:][ \t]{0,3}b?"
    r"(?P<quote>\\?['\"])(?P<secret>[^'\"\n\\]{1,500})(?P=quote)"
)
_SPOKEN = re.compile(_NAME + r"[ \t]{1,2}(?P<quote>['\"`])(?P<secret>[^\s'\"`\\]{6,200})(?P=quote)")
_PLAIN = re.compile(
    _NAME + r"(?P<between>[ \t]{0,3}[=:][ \t]{0,3}| is )"
    # What follows the name may be a pair itself.
    r"(?=(?P<secret>[^\s'\"\\,;&<>{}()\[\]$*%#]{3,200})(?![\w(\[{]))"
)
_LINE = re.compile(
    r"(?m)^[ \t%!]*(?:(?:export|set|ENV|env|set_env)[ \t]+)?"
    r"(?P<name>[A-Z][A-Z0-9_]{2,60})=(?P<quote>['\"]?)"
    r"(?P<secret>[^\s'\"{}()\[\]$*%;&|]{3,400})(?P=quote)(?=[\s;&|]|$)"
)
_MAGIC = re.compile(
    r"(?:%(?:set_)?env[ \t]+|_magic\('(?:set_)?env', *'|\bset[ ]+)(?P<name>\w{1,60})[= ][ \t]*"
    r"(?P<secret>[^\s'\"$]{1,400})"
)
_OPTION = re.compile(
    r"(?<![\w-])--?(?P<name>[A-Za-z][\w-]{2,60})[ =]['\"]?(?P<secret>[^\s'\"$<{-][^\s'\"]{2,400})"
)
_CURL = re.compile(
    r"(?:(?<=\s)|^)(?:-u|-a|--auth|--user|--proxy-user)[ =]?['\"]?[^\s:'\"$]{1,60}:"
    r"(?P<secret>[^\s'\"$]{1,300})"
)
_SHELL = re.compile(
    r"\b(?:sshpass[ ]+-p[ ]*|mysql\w{0,8}[ ][^|;\n]{0,200}?-p(?=\S)|login[ ][^|;\n]{0,200}?-p[ =]?)"
    r"['\"]?(?P<secret>[^\s'\"$-]\S{2,200})"
)
_SHELL_KEY = re.compile(r"\blogin[ ]+(?:--?\w+[ ]+){0,4}(?P<secret>[0-9a-f]{40,64})(?!\w)")
_SQL = re.compile(r"(?i)\bidentified\s{1,3}by\s{1,3}['\"](?P<secret>[^'\"\s]{1,200})['\"]")
_NETRC = re.compile(r"\blogin[ \t\n]+\S{1,100}[ \t\n]+password[ \t\n]+(?P<secret>[^\s'\"]{1,200})")
_MARKED = re.compile(r"<(?P<name>[A-Za-z][\w-]{0,60})>(?P<secret>[^<>\s{}$]{3,300})</(?P=name)>")
_DENSE = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/=_-]{20,120}(?![\w+/=.-])")
_PAIRS = re.compile(r"(?m)(?:^|[;\s])[\w.-]{1,60}[ \t]{0,3}(?:=|:(?=[ \t]))[ \t]{0,3}[^\s=]")
_RUN = re.compile(r"[A-Za-z0-9+/_-]{12,4000}={0,2}")
_TYPED = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])\S{6,}")
_ENDS = re.compile(r"[ \t]*(?:\n|$)")
_COUNTED = re.compile(r"\d+[-_.+]?[A-Za-z-]+")  # as "32-character"
_LEAST_BITS = 3.6  # Shannon entropy of a character
_LEAST_CHANGES = 0.5  # of all neighbours, those of different classes of characters
_LEAST_MIXED = 0.18  # under a name that speaks of keys
_SHORTEST_MIXED = 12
_LEAST_PIECE = 10  # characters between two dashes, on average; names have shorter words
_LONGEST_KEY = 120  # characters; what is longer is data, as a picture in base64
_LEAST_VARIABLE = 8  # characters of a variable of the environment
_LEAST_VALUE = 3  # characters of a value of the environment that counts inside a text
_LEAST_LINE = 20  # of a line of a secret of several lines
_FEW_PAIRS = 2
_LONG_FORM = 10  # characters of what is known that is one also inside a word
# The secrets of the environment, and with them what the export under way has found.
_known: ContextVar[frozenset[str] | None] = ContextVar("known", default=None)
_live: ContextVar[Mapping[str, Any]] = ContextVar("live", default=MappingProxyType({}))


def words_of(name: str) -> list[str]:
    """Split a name into lower-case words: `hfToken` and `HF_TOKEN` both give hf, token."""
    return [word.lower() for word in _WORDS.findall(name)]


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a text of this name is a secret, whatever it looks like.

    A bare `token` is none: it may be a piece of a text, and its value decides.
    """
    words = words_of(name)
    if not words or words[-1] in _ABOUT:
        return False
    if _STRONG.intersection(words) or any(word.endswith(_ENDINGS) for word in words):
        return True
    if any(one in _KEYS and two in ("key", "keys") for one, two in pairwise(words)):
        return True
    if words[-1] in ("pass", "pw"):
        return bool(_LOGINS.intersection(words)) or name == "PASS"
    if words[-1] in ("cookie", "cookies"):
        return "session" in words
    return words[-1] == "token" and (bool(_OWNERS.intersection(words)) or name == "TOKEN")


def is_suspicious_name(name: str) -> bool:
    """Return whether a name may be that of a secret, as `KEY`: what it holds decides."""
    words = words_of(name)
    return is_secret_name(name) or bool(words and words[-1] in _WEAK | {"pass", "pw"})


def is_secret(name: str, text: str) -> bool:
    """Return whether a text is a secret, by the name it has (which may be empty) or by its look."""
    if _is_filler(text):
        return False
    dense = not _is_of_hash(words_of(name))
    return looks_secret(text, dense=dense) or _is_secret_named(name, text)


def _is_filler(text: str) -> bool:
    """Return whether a text stands where a secret may be, and is none: "required", "your-key"."""
    return bool(_HOLDER.fullmatch(text)) or text.strip(" :=").lower() in _TAME


def _is_secret_named(name: str, text: str) -> bool:
    """Return whether a text is a secret because of its name."""
    if not name or _is_filler(text) or _MARKER.fullmatch(text) or _is_its_name(name, text):
        return False
    return _is_secret_by_name(name, text)


def _is_its_name(name: str, text: str) -> bool:
    """Return whether a text only repeats its name, as `password="password"` in an example."""
    words = words_of(text)
    return bool(_IDENTIFIER.fullmatch(text)) and set(words) <= {*words_of(name), *_STRONG}


def _is_of_hash(words: list[str]) -> bool:
    """Return whether a name is that of a hash, or of the id of something public."""
    return bool(_HASHES.intersection(words)) or words[-1:] in (["id"], ["ids"])


def _is_secret_by_name(name: str, text: str) -> bool:
    words = words_of(name)
    if is_secret_name(name):
        return not (words[-1] == "pwd" and text[:1] in ("/", "~", "."))
    if not words or words[-1] in _ABOUT or _is_of_hash(words):
        return False
    if words[-1] in ("key", "auth", "token") and _HEX.fullmatch(text):
        return True
    if words[-1] == "auth" and re.fullmatch(r"[^\s:/]+:[^\s/]+", text):
        return True
    if words[-1] in ("pass", "pw"):
        return _TYPED.fullmatch(text) is not None
    if words[-1] in _WEAK:
        parts = [text]
        if words[-1] in ("cookie", "cookies"):
            parts = [part.rpartition("=")[2] for part in re.split(r"[;\s]+", text)]
        if any(map(_is_mixed, parts)):
            return True
    bare = words in (["token"], ["my", "token"], ["cookie"], ["auth"])
    if not bare or " " in text or _IDENTIFIER.fullmatch(text):
        return False
    return len(text) >= (_SHORTEST_TOKEN if any(map(str.isdigit, text)) else _LONG_TOKEN)


def _is_mixed(text: str) -> bool:
    """Return whether letters and digits change often in a text, unlike those in names of files."""
    if len(text) < _SHORTEST_MIXED or len(text) > _LONGEST_KEY or _UUID.fullmatch(text):
        return False
    if not re.fullmatch(r"[\w+/=~.-]+", text, re.ASCII) or re.search(r"\.[A-Za-z]\w{0,4}$", text):
        return False
    pieces = re.findall(r"[A-Za-z0-9]+", text)
    kinds = [[_kind(c) for c in piece] for piece in pieces]
    if not {"0"} < {kind for piece in kinds for kind in piece}:
        return False
    changes = sum(a != b for piece in kinds for a, b in pairwise(piece))
    return changes >= _LEAST_MIXED * (sum(map(len, pieces)) - 1)


def _kind(character: str) -> str:
    return "0" if character.isdigit() else "A" if character.isupper() else "a"


def _is_rare(text: str) -> bool:
    """Return whether a text is nothing else than the secret that it is, wherever it stands.

    A password that is a word is not: others write that word too.
    """
    if _HOLDER.fullmatch(text) or text.lower() in _TAME | _STRONG or _MARKER.fullmatch(text):
        return False
    if _TYPED.fullmatch(text) and len(text) >= _SHORTEST_TOKEN:
        return not re.fullmatch(r"[A-Za-z]+[_-]\d+", text)
    return len(text) >= _LEAST_VARIABLE and not _IDENTIFIER.fullmatch(text)


def looks_secret(text: str, *, dense: bool = True) -> bool:
    """Return whether a text holds a secret by its look alone.

    Args:
        text: any.
        dense: a random-looking text of 20 to 120 characters counts; longer ones are data, and
            those of one case, as hexadecimal hashes, do not look random.
    """
    if next(_spans(text), None) is not None:
        return True
    forms = _known_forms()
    if forms is not None and (forms.search(text) or any(_encoded(text, forms))):
        return True
    return dense and len(text) <= _LONGEST_KEY and _is_dense(text.strip())


def holds_token(data: bytes) -> bool:
    """Return whether bytes of any kind hold a token of a known form, or a secret that is known."""
    text = data.decode("latin-1")
    forms = _known_forms()
    return _KNOWN.search(text) is not None or (forms is not None and bool(forms.search(text)))


def secrets_held(text: str) -> list[str]:
    """Return the secrets that a text holds by what stands around them."""
    return [text[first:last] for first, last in _spans(text)]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Return the places of secrets in a text, by what stands around them or how they begin."""
    if len(text) < _SHORTEST_TOKEN or (len(text) < _LONG_TOKEN and text.isidentifier()):
        return
    for match in _KNOWN.finditer(text):
        yield match.span("bearer" if match["bearer"] else 0)
    for pattern, needed, is_one in _SHAPES:
        if needed in text:
            yield from (one.span("secret") for one in pattern.finditer(text) if is_one(one))
    if "=" in text or ":" in text or " is " in text:
        is_config = len(list(_PAIRS.finditer(text))) >= _FEW_PAIRS and "(" not in text
        for match in _PLAIN.finditer(text):
            if _is_told(match, is_config=is_config):
                yield match.span("secret")


def _is_secret_parameter(match: re.Match[str]) -> bool:
    """Return whether a parameter in the query of an address is one that grants access."""
    name, value = match["name"], match["secret"]
    if value.startswith(("%7B", "%24", "...")) or _is_of_hash(words_of(name)[-1:]):
        return False
    if _is_secret_assigned(name, value):
        return True
    words = words_of(name)
    if not words or words[-1] not in _WEAK:
        return False
    if words[-1] in ("key", "keys", "session"):
        return _is_mixed(value)
    numbered = _TYPED.match(value) is not None and not _IDENTIFIER.fullmatch(value)
    return len(value) >= (_SHORTEST_SIGNATURE if numbered else _LONG_TOKEN)


def _is_secret_assigned(name: str, value: str) -> bool:
    """Return whether a text that stands behind a name, in a text of any language, is a secret."""
    return _is_secret_named(name.rpartition(".")[2], value)


def _is_told(match: re.Match[str], *, is_config: bool) -> bool:
    """Return whether `name: value`, `name=value` or `name is value` tells a secret, or of one."""
    name, value = match["name"], match["secret"].rstrip(".:!?")
    if not _is_secret_assigned(name, value) or _COUNTED.fullmatch(value):
        return False
    if words_of(name)[-1] in _WEAK and not is_secret_name(name) and not is_config:
        return _is_mixed(value)
    if _TYPED.fullmatch(value):
        return True
    is_whole = "=" in match["between"] or _ENDS.match(match.string, match.end("secret"))
    return is_config and bool(is_whole) and match["between"] != " is " and "." not in value


def _is_basic(match: re.Match[str]) -> bool:
    with contextlib.suppress(binascii.Error, ValueError, UnicodeDecodeError):
        text = base64.b64decode(match["secret"], validate=True).decode("utf-8")
        return ":" in text and text.isprintable()
    return False


def _is_login(match: re.Match[str]) -> bool:
    return match.start() == 0 and _TYPED.fullmatch(match["secret"]) is not None


def _is_assigned(match: re.Match[str]) -> bool:
    return _is_secret_assigned(match["name"], match["secret"])


def _is_spoken(match: re.Match[str]) -> bool:
    return is_secret_name(match["name"]) and _TYPED.fullmatch(match["secret"]) is not None


# What a secret may stand in, what a text must hold for that, and what else must be true.
_SHAPES: tuple[tuple[re.Pattern[str], str, Callable[[re.Match[str]], bool]], ...] = (
    *((_LOGIN, "@", bool), (_USER, "@", bool), (_HOOK, "/", bool)),
    (_NETLOC, "@", _is_login),
    *((_QUERY, "=", _is_secret_parameter), (_BASIC, " ", _is_basic), (_SQL, "", bool)),
    *((_NETRC, "login", bool), (_SHELL_KEY, "login ", bool)),
    *((_CURL, "-", bool), (_SHELL, "-", bool)),
    *((pattern, "", _is_assigned) for pattern in (_QUOTED, _LINE, _MAGIC, _OPTION, _MARKED)),
    (_SPOKEN, "", _is_spoken),
)


def _is_dense(text: str) -> bool:
    if not _DENSE.fullmatch(text):
        return False
    pieces = re.findall(r"[A-Za-z0-9]+", text)
    text = "".join(pieces)
    if len(text) < _LEAST_PIECE * len(pieces):
        return False
    kinds = [_kind(character) for character in text]
    changes = sum(a != b for a, b in pairwise(kinds))
    if not {"0", "A", "a"} <= set(kinds) or changes < _LEAST_CHANGES * (len(text) - 1):
        return False
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares) >= _LEAST_BITS


@contextlib.contextmanager
def knowing(
    values: Iterable[str] = (), *, live: Mapping[str, Any] | None = None, alone: bool = False
) -> Iterator[None]:
    """Have texts be secret wherever they stand, for as long as this lasts; words are left out.

    Args:
        values: the texts; the secrets of the environment come with them.
        live: variables of the notebook. The functions among them tell what they call their
            arguments, so that a password that a call has by position is seen.
        alone: forget meanwhile what was known before.
    """
    with contextlib.ExitStack() as stack:
        if live is not None:
            stack.callback(_live.reset, _live.set(live))
        before = None if alone else _known.get()
        found = (before or frozenset()).union(_variables(), filter(_is_rare, values))
        stack.callback(_known.reset, _known.set(found))
        yield


def know(values: Iterable[str]) -> None:
    """Have more texts be secret until the `knowing` around this ends, words too."""
    before = _known.get()
    if before is not None:
        _known.set(before.union(one for one in values if one not in _TAME))


def _known_forms() -> re.Pattern[str] | None:
    known = _known.get()
    return _forms(_variables() if known is None else known)


def _variables() -> frozenset[str]:
    """Return the values of the environment's secrets."""
    return frozenset(
        value
        for name, value in os.environ.items()
        if is_secret_name(name)
        and _is_secret_by_name(name, value)
        and (_is_rare(value) or len(value) >= _LEAST_VARIABLE)
        and value not in _STRONG
    )


def environment_values(names: Iterable[str]) -> frozenset[str]:
    """Return the values of environment variables, which are never written to a file."""
    return frozenset(filter(None, map(os.environ.get, names)))


def holds_value(text: str, values: frozenset[str]) -> bool:
    """Return whether a text is one of some values, or holds one of three characters or more."""
    forms = _forms(frozenset(value for value in values if len(value) >= _LEAST_VALUE))
    inside = forms is not None and (forms.search(text) or any(_encoded(text, forms)))
    return bool(inside) or text in values


@lru_cache(maxsize=64)
def _forms(values: frozenset[str]) -> re.Pattern[str] | None:
    """Return what finds texts in others, in the forms that they may have there; None without any.

    Short ones count as words: `abc123` is not in a hash that holds these letters.
    """
    forms: set[str] = set()
    for value in values:
        lines = [line for line in value.splitlines() if len(line) >= _LEAST_LINE]
        for text in (value, *lines):
            escaped = (json.dumps(text)[1:-1], repr(text)[1:-1], quote(text, safe=""), quote(text))
            data = text.encode("utf-8", "surrogatepass")
            forms |= {text, *escaped, data.hex(), text[::-1]}
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile("|".join(map(_pattern, ordered))) if forms else None


def _pattern(form: str) -> str:
    text = re.escape(form)
    return text if len(form) >= _LONG_FORM else f"(?<![A-Za-z0-9]){text}(?![A-Za-z0-9])"


def _encoded(text: str, forms: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Return the runs of base64 in a text that hold what is searched for."""
    for match in _RUN.finditer(text):
        run = match[0].rstrip("=").replace("-", "+").replace("_", "/")
        data = base64.b64decode(run[: len(run) - (len(run) % 4 == 1)] + "=" * (-len(run) % 4 % 3))
        inner = data.decode("latin-1")
        if forms.search(inner):
            yield match


def redacted(text: str) -> str:
    """Replace the secrets in a text by three asterisks.

    Examples:
        >>> redacted("login to https://me:pa55word@example.org failed")
        'login to https://me:***@example.org failed'
    """
    forms = _known_forms()
    if forms is not None:
        text = forms.sub(HIDDEN, text)
        text = _without(text, [match.span() for match in _encoded(text, forms)])
    text = _without(text, _spans(text))
    return _DENSE.sub(lambda match: HIDDEN if _is_dense(match[0]) else match[0], text)


def _without(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Replace places of a text, which may overlap."""
    parts, end = [], 0
    for first, last in sorted(spans):
        if first >= end:
            parts += [text[end:first], HIDDEN]
        end = max(end, last)
    return "".join([*parts, text[end:]])


# -- Literals and comments of source text ----------------------------------------------------------
_LEAST_PIN = 1000
_SHORTEST_LETTERS = 6  # numbers that may be the letters of a password
_LETTERS = range(32, 127)
_NUMBERS = _set("password passwd passphrase passcode pin")
_ASKS = _set("get getenv getenvb pop setdefault cast")  # for a name, else a default; of a type
_KEPT = _set(  # calls that give what they are given, in another form
    "array asarray frombuffer fromstring str_ bytes_ Series tensor str bytes bytearray list tuple "
    "set frozenset SecretStr Secret b64decode b64encode fromhex join encode decode strip format "
    "replace lower upper quote unquote reversed dict field Field attrib ib Parameter "
    "hexdigest digest sha1 sha256 sha512 md5 blake2b new hex urlsafe_b64encode standard_b64encode "
    "b16encode b32encode hexlify quote_plus removeprefix removesuffix rstrip lstrip title urlencode"
)
_TRIMS = _set("strip lstrip rstrip removeprefix removesuffix encode decode")  # of `_KEPT`
_AUTHS = re.compile(r"(?i)\w*(?:basic|digest|proxy|ntlm)\w*auth(?:entication)?|auth")
_ADDS = _set("append add extend insert appendleft")
_GIVES = _set("set add use with auth")  # first words of functions that are given a secret
_PARTS: dict[type, tuple[str, ...]] = {  # of expressions, those that are in what they give
    **dict.fromkeys((ast.Starred, ast.Await, ast.NamedExpr, ast.Subscript), ("value",)),
    **dict.fromkeys((ast.Attribute, ast.FormattedValue), ("value",)),
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set), ("elts",)),
    **dict.fromkeys((ast.Dict, ast.BoolOp, ast.JoinedStr), ("values",)),
    ast.BinOp: ("left", "right"),
    ast.IfExp: ("body", "orelse"),
    ast.Lambda: ("body",),
}
_SAME = (ast.Call, ast.IfExp, ast.BoolOp, ast.Await, ast.NamedExpr)  # of `_kept`: they give a part
_HOLES = re.compile(r"\{\w*[^{}]*\}|%(?:\(\w+\))?[sdr]")  # of a template


def advice(name: str) -> str:
    """Return what a message says of a secret, and what to write instead."""
    known = "".join(c if c.isalnum() else "_" for c in name).strip("_").upper()
    return (
        "holds what looks like a secret; it is never written to a file. Read it at run time, e.g. "
        f'os.environ["{known if is_secret_name(name) else "TOKEN"}"]'
    )


def as_text(value: str | bytes | bytearray) -> str:
    """Return a text, or bytes letter by letter."""
    return str(value) if isinstance(value, str) else bytes(value).decode("latin-1")


def is_letters(numbers: Sequence[object]) -> bool:
    """Return whether numbers may be the letters of a text, as those of `list(b"...")` are."""
    few = len(numbers) < _SHORTEST_LETTERS
    return not few and all(type(one) is int and one in _LETTERS for one in numbers)


def is_secret_number(name: str, value: object) -> bool:
    """Return whether a number is one that somebody types, as a PIN of four digits."""
    many = type(value) is int and value >= _LEAST_PIN
    return many and bool(_NUMBERS.intersection(words_of(name)[-1:]))


def is_table(values: Iterable[object]) -> bool:
    """Return whether texts are given numbers, as in the vocabulary of a tokenizer."""
    return set(map(type, values)) == {int}


Pairs = Iterator[tuple[str, str]]  # the name that a text is given, and the text
_Named = Iterator[tuple[str, ast.AST]]


def secret_in_text(text: str) -> bool:
    """Return whether source text holds a secret as a literal or in a comment.

    A look-up as `os.environ.get("HF_TOKEN")` is none: it gives a name, not the value.
    """
    return next(secrets_in_text(text), None) is not None


def secrets_in_text(text: str) -> Pairs:
    """Return the secrets in source text, each with the name of what holds it, where it has one."""
    tree = tree_of(text)
    if tree is None:
        if redacted(text) != text:
            yield "", text
        return
    yield from ((name, secret) for _, name, secret in _secrets_in(tree))
    yield from (("", comment) for comment in _secret_comments(text))


def secrets_in_source(text: str) -> Iterator[str]:
    """Return the secrets of a source text that are secret wherever they stand: the rare ones."""
    for _, secret in secrets_in_text(text):
        yield from filter(_is_rare, secrets_held(secret) or (secret,))


def redacted_source(text: str) -> str:
    """Replace the lines with secrets in source text by three asterisks; other is `redacted`."""
    tree = tree_of(text)
    if tree is None:
        return redacted(text)
    lines = text.split("\n")
    for node, _, _ in _secrets_in(tree):
        for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            lines[row - 1] = HIDDEN
    text = "\n".join(lines)
    for comment in _secret_comments(text):
        text = text.replace(comment, HIDDEN)
    return redacted(text)


def _secrets_in(tree: ast.Module) -> Iterator[tuple[ast.expr, str, str]]:
    """Return the expressions that are secrets, each with its name, if it has one, and the text."""
    nodes = list(ast.walk(tree))
    known = NamesInText(nodes, _live.get())
    under: dict[ast.AST, list[str]] = {}  # the names that stand for a part

    def mark(part: ast.AST, name: str, *, follows: bool = True) -> None:
        """Give a part a name, and what it consists of; variables that are such as they are."""
        if name in under.setdefault(part, []):
            return
        under[part].append(name)
        if follows and _is_strong(name):
            for value in known.values_of(part):
                for inner, one in _called(name, value):
                    mark(one, inner)
        if is_suspicious_name(name):
            for one in _kept(part):
                mark(one, name, follows=follows and isinstance(part, _SAME))

    for node in nodes:
        for name, part in _named_parts(node, known):
            mark(part, name)
    for node in nodes:
        names = under.get(node, [""])
        marks = list(filter(is_suspicious_name, names))
        if isinstance(node, ast.Constant):
            for name in names:
                if is_secret_number(name, node.value):
                    yield node, "password", str(node.value)
        if isinstance(node, ast.expr):
            texts = (*_texts(node), *_composed(node), *(_disguised(node) if marks else ()))
            for text in texts:
                yield from ((node, name, text) for name in names if is_secret(name, text))


def _named_parts(node: ast.AST, known: NamesInText) -> _Named:
    """Return what a node gives a name to, as a variable, a key or a parameter."""
    match node:
        case ast.Assign(targets, value):
            for target in targets:
                yield from _given(target, value)
        case ast.AnnAssign() | ast.NamedExpr() | ast.AugAssign():
            yield from _given(node.target, node.value)
        case ast.keyword(name, value):
            yield from _called(name or "", value)
        case ast.Dict(keys, values):
            table = len(values) > 1 and is_table(getattr(one, "value", one) for one in values)
            for key, value in () if table else zip(keys, values, strict=True):
                yield from _given(key, value)
        case ast.Tuple([key, value]):
            yield from _given(key, value)
        case ast.List([key, value]) if any(map(is_secret_name, _texts(key))):
            yield from _given(key, value)
        case ast.Compare(left, _, [right, *_]):
            yield from (*_given(left, right), *_given(right, left))
        case ast.For(target, values) | ast.comprehension(target, values):
            yield from _given(target, values)
        case ast.MatchMapping(keys, patterns):
            for key, pattern in zip(keys, patterns, strict=True):
                yield from _given(key, getattr(pattern, "value", None))
        case ast.FunctionDef(name, _, _, marks):  # what a property is, or `get_password` gives
            gives = any(last_name(mark).endswith("property") for mark in marks)
            returns = (one for one in ast.walk(node) if isinstance(one, ast.Return))
            for one in returns if gives or words_of(name)[:1] == ["get"] else ():
                yield from _called(name, one.value)
        case ast.arguments():
            for name, default in defaults_in(node):
                yield from _called(name, default)
        case ast.Call():
            yield from _arguments(node, known)


def _arguments(call: ast.Call, known: NamesInText) -> _Named:
    """Return the arguments of a call, each with the name of the parameter that it is for."""
    if len(call.args) > 1:  # as in `setattr(x, "password", ...)`
        yield from _given(*call.args[-2:])
    for name, value, marked in known.arguments_of(call):
        if words_of(name) == ["token"]:  # it may be a piece of a text
            yield "a_token", value
        elif not marked or _is_strong(name):
            yield from _called(name, value)
    name = last_name(call.func)
    if name in _ADDS:  # as in `PASSWORDS.append(...)`
        owner = getattr(call.func, "value", None)
        for value in call.args:
            yield from _given(owner, value)
    if _AUTHS.fullmatch(name):
        yield from (("password", value) for value in call.args[1:2])
    elif is_secret_name(name) and words_of(name)[0] in _GIVES:  # as `set_password(user, ...)`
        yield from (("password", value) for value in call.args[-1:])


def _is_strong(name: str) -> bool:
    """Return whether what a parameter of this name is given is a secret, whatever it looks like."""
    return is_secret_name(name) or words_of(name)[-1:] == ["auth"]


def _given(target: ast.expr | None, value: ast.expr | None) -> _Named:
    """Return what something is given: a variable, an attribute, a key."""
    match target, value:
        case ((ast.Tuple(names) | ast.List(names)), (ast.Tuple(values) | ast.List(values))):
            for one, other in zip(names, values, strict=False):
                yield from _given(one, other)
        case ((ast.Name() | ast.Attribute()), _):
            yield from _called(last_name(target), value)
        case ast.Subscript(_, key), _:
            yield from _given(key, value)
        case ast.Tuple([*_, ast.Constant() as last]), _:
            yield from _given(last, value)
        case ast.Constant(str() | bytes() as name), _:
            yield from _called(as_text(name), value)


def _called(name: str, value: ast.expr | None) -> _Named:
    """Return a value with its name; of a pair that is called `auth`, the second."""
    if words_of(name)[-1:] == ["auth"] and isinstance(value, ast.Tuple | ast.List):
        yield from (("password", part) for part in value.elts[1:])
    elif value is not None:
        yield name, value


def _kept(node: ast.AST) -> Iterator[ast.AST]:
    """Return the parts that what an expression gives consists of, in some form."""
    if not isinstance(node, ast.Call):
        for field in _PARTS.get(type(node), ()):
            parts = getattr(node, field)
            yield from parts if isinstance(parts, list) else [parts]
        return
    name, owner = last_name(node.func), getattr(node.func, "value", None)
    if name in _ASKS:
        yield from node.args[1:]
    elif name in _KEPT:
        if name != "format" and owner is not None:
            yield owner
        if name not in _TRIMS:
            yield from (*node.args, *(one.value for one in node.keywords))


def _texts(node: ast.AST | None) -> list[str]:
    """Return the text that an expression is: a literal, or literals added up."""
    match node:
        case ast.Constant(str() | bytes() as value):
            return [as_text(value)]
        case ast.BinOp(left, ast.Add(), right):
            return ["".join(_texts(left) + _texts(right))]
        case ast.FormattedValue(inner):
            return _texts(inner)
        case ast.JoinedStr(parts):
            return ["".join(text for part in parts for text in _texts(part))]
    return []


def _composed(node: ast.AST) -> list[str]:
    """Return what literals say together: a template that is filled, the words of a command."""
    match node:
        case ast.BinOp(ast.Constant(str() as template), ast.Mod(), given):
            parts = getattr(given, "values", getattr(given, "elts", [given]))
        case ast.Call(ast.Attribute(ast.Constant(str() as template), "format"), given, named):
            parts = [*given, *(one.value for one in named)]
        case ast.Tuple(parts) | ast.List(parts):
            words = [text for part in parts for text in _texts(part)]
            return [" ".join(words)] if any(one[:1] == "-" for one in words) else []
        case _:
            return []
    gaps = iter(parts)
    return [_HOLES.sub(lambda hole: "".join(_texts(next(gaps, None))) or hole[0], template)]


def _disguised(node: ast.AST) -> list[str]:
    """Return what only its name tells to be a secret: letters, or what stands in a template."""
    if isinstance(node, ast.Call) and last_name(node.func) == "format":
        return [_HOLES.sub("", text) for text in _texts(getattr(node.func, "value", node))]
    letters: list[Any] = [getattr(one, "value", None) for one in getattr(node, "elts", ())]
    return [bytes(letters).decode("ascii")] if is_letters(letters) else []


def _secret_comments(text: str) -> Iterator[str]:
    for token in lines_of(text).tokens:
        comment = token.string.lstrip("#!: ")
        if token.type == tokenize.COMMENT and redacted(comment) != comment:
            yield comment
        elif token.type == tokenize.COMMENT and (tree := tree_of(comment)):
            yield from (comment for _ in islice(_secrets_in(tree), 1))


def names_kept(node: ast.AST) -> set[str]:
    """Return the variables that an expression puts together, or gives another form."""
    match node:
        case ast.Name(name):
            return {name}
        case ast.Dict() | ast.List() | ast.Tuple() | ast.Set():
            return set()  # what is taken out of it may be anything
        case ast.Subscript(_, part) if not isinstance(part, ast.Slice):
            return set()
    return {name for part in _kept(node) for name in names_kept(part)}
