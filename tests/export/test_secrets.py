import base64
import functools
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from nbpipe.export.reachable import secret_in
from nbpipe.export.secrets import redacted, secret_in_text

HF = "hf_abcdefghijklmnopqrstuvwx"
DENSE = "aB3xY9qLmN2pR7sT5vWz"

SHAPES = [
    HF,
    "sk-ant-api03-abcdefgh",
    "sk-proj-abcdefgh1jklmnopqrst",
    "ghp_abcdefghijklmnop1234",
    "github_pat_abcdefghijklmnop1234",
    "glpat-abcdefghijklmnop",
    "xoxb-1234567890-abcdef",
    "AKIAABCDEFGHIJKLMNOP",
    "AIza" + "b" * 35,
    "ya29.abcdefghijklmnop1",
    "eyJhbGciOiJI.eyJzdWIi.c2lnbmF0",
    "-----BEGIN RSA PRIVATE KEY-----\nabc",
    "npm_" + "a1" * 18,
    "pypi-" + "a1" * 18,
    "SG.abcdefghijklmnop.abcdefghijklmnop",
    "dop_v1_" + "0a" * 32,
    "postgres://me:pa55@host/db",
    DENSE,
]
PREFIXED = [  # found by their beginnings, whatever else is in a text
    *("hf_" + "a" * 20, "sk_live_" + "a" * 12, "rk_test_" + "a" * 12, "ghu_" + "a" * 20),
    *("github_pat_" + "a" * 22, "glsoat-" + "a" * 14, "xapp-" + "a" * 12, "AROA" + "A" * 16),
    *("GOCSPX-" + "a" * 22, "npm_" + "a" * 31, "pypi-" + "a" * 22, "dop_v1_" + "a" * 33),
    *("r8_" + "a" * 31, "wandb_v1_" + "a" * 22, "shpat_" + "a" * 32, "dapi" + "a" * 32),
    *("gsk_" + "a" * 31, "nvapi-" + "a" * 31, "xai-" + "a" * 41, "pplx-" + "a" * 31),
    *("hvs." + "a" * 21, "dckr_pat_" + "a" * 21, "lin_api_" + "a" * 31, "ntn_" + "a" * 31),
    *("ATATT3" + "a" * 21, "PMAK-" + "a" * 41, "glsa_" + "a" * 31, "sbp_" + "a" * 40),
    *("tgp_v1_" + "a" * 31, "AGE-SECRET-KEY-1" + "A" * 41, "123456789:AA" + "a" * 31),
    *("Bearer abcd1234x", "BEARER abcd1234x", "AccountKey=" + "a" * 21),
]
WORD = "horse9battery"
TOLD = {
    "function": f"def login(user, password): pass\nlogin('me', '{WORD}')",
    "partial": f"def login(password, x): pass\nlogin = partial(login, '{WORD}')",
    "class": f"class Hub:\n    def __init__(self, api_key): pass\nhub = Hub('{WORD}')",
    "dataclass": f"class Hub:\n    retries: int\n    api_key: str\nhub = Hub(3, '{WORD}')",
    "method": f"class Hub:\n    def login(self, password): pass\nhub.login('{WORD}')",
    "static": f"class A:\n    @staticmethod\n    def f(password): pass\nA.f('{WORD}')",
    "pair": f"PAIRS = [('password', '{WORD}')]",
    "sentence": f"x = 1  # my password is {WORD}",
    "colon": f"# password: {WORD}\nx = 1",
    "pin": "def unlock(pin): pass\nunlock(4711)",
    "named hole": f"URL = 'https://{{user}}:{{word}}@example.org'.format(user='me', word='{WORD}')",
    "hole of a table": f"URL = 'https://%(user)s:%(word)s@h.org' % {{'user': U, 'word': '{WORD}'}}",
    "loop": f"for password in ['{WORD}', OTHER]: pass",
    "comprehension": f"FOUND = [login(password) for password in ('{WORD}',)]",
    "case": f"match account:\n    case {{'password': '{WORD}'}}: pass",
    "user's": f"user.set_password('{WORD}')",
    "looked up": f"def get_password(user): return '{WORD}'",
    "property": f"class Hub:\n    @property\n    def api_key(self): return '{WORD}'",
}
ONLY_SOUNDING = {
    "vocabulary": 'VOCABULARY = {"password": 18042, "secret": 1700}',
    "template": 'URL = "https://%s:%s@example.org" % (USER, WORD)',
    "example": 'URL = "postgres://me:password@example.org/data"',
    "shared file": 'FILE_ID = "1A2b3C4d5E6f7G8h9I0jKlMnOpQrStUvWx"',
    "advice": "# password: read it from the environment\nx = 1",
    "place": 'x = 1  # secret: os.environ["A1B2C3"]',
    "small number": "pin = 3",
    "argument": "def embed(x, pad_token): pass\nembed('a', '<pad>')",
    "what is said of one": "def password_strength(password): return 'weak'",
    "holes": "URL = 'https://{user}:{word}@example.org'.format(user='me', word=WORD)",
    "words in a loop": "for token in ['hello', 'world']: pass",
}
TAME = {
    "n_tokens": 512,
    "max_tokens": "512",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "mask_token": "[MASK]",
    "token": "hello",
    "auth": "author",
    "my_token": "token_1",
    "cookie": "chocolate-chip-and-oatmeal",
    "tokens": ["the", "quick", "abc123"],
    "token_ids": [1, 2],
    "tokenizer": "bert-base-uncased",
    "tokenizer_name": "ResNet50-ImageNet1k-v2-weights",
    "sep_token": "##",
    "first_token": "Ġhello",
    "key": "label",
    "sort_key": "name",
    "author": "Ada Lovelace",
    "api_key_env": "HF_TOKEN",
    "password_file": "secret.txt",
    "API_KEY": "",
    "PASSWORD": "***",
    "url": "https://example.org/data/Train2017/Img0001.png?size=3",
    "path": "/data/ImageNet2012/ILSVRC2012_val_00000001.JPEG",
    "sha256": "E3b0C44298Fc1C149aFbF4C8996Fb92427Ae41E4649B934cA495991B7852b855",
    "revision": DENSE,
    "commit": "e83c5163316f89bfbde7d9ab23ca2f94e5d4a12d",
    "alphabet": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    "dna": "ACGTACGTACGTACGTACGTACGTACGT",
    "model": "ResNet50ImageNet1kV2Pretrained",
    "pixels": "iVBORw0KGgo" + "aB3xY9qLmN2pR7sT5vWz" * 10,
    "template": "postgres://{user}:{password}@host/db",
    "pwd": "/home/ada",
    "secret_name": "kept in the vault",
    "words": "a sentence about the token of our esteem",
}


@dataclass
class Client:
    url: str = ""
    api_key: str = field(default="", repr=False)


class Slotted:
    __slots__ = ("password",)


@pytest.mark.parametrize("text", SHAPES)
def test_shape_of_a_secret(text):
    """A text that looks like a key is a secret under any name, also as bytes and nested."""
    nested = {"a": [(text.encode(),)]}
    assert (secret_in("x", text), secret_in("x", nested)) == ("x", "x['a'][0][0]")


@pytest.mark.parametrize("token", PREFIXED)
def test_known_beginning_of_a_token(token):
    """A token is found by its beginning alone: in a sentence, in a comment, in an array."""
    letters = np.frombuffer(token.encode(), "uint8")
    found = secret_in("x", letters), secret_in_text(f"x = 'clone with {token}'  # {token}")
    assert found == ("x", True)


@pytest.mark.parametrize("name", TAME)
def test_no_secret(name):
    """What researchers name and write every day is no secret."""
    assert secret_in(name, TAME[name]) is None


@pytest.mark.parametrize(
    "name",
    [
        *("API_KEY", "apikey", "apiKey", "my_secret", "TOKEN", "HF_TOKEN", "hfToken", "password"),
        *("access_token", "DB_PASSWD", "credentials", "private_key", "aws_secret_access_key"),
    ],
)
def test_name_of_a_secret(name):
    """A text under the name of a secret is one, however it looks."""
    assert secret_in(name, "abc123") == name


def test_bare_token_by_its_value():
    """A plain `token` is a secret where it is numbered, not where it is a word."""
    assert [secret_in("token", "abc123"), secret_in("token", "house")] == ["token", None]


def test_nested_places():
    """The place of a nested secret is said as it would be written."""
    config = {"db": {"user": "ada", "password": "abc"}}
    found = [
        secret_in("CONFIG", config),
        secret_in("client", Client("u", "abc")),
        secret_in("space", SimpleNamespace(secret="abc")),
        secret_in("call", functools.partial(print, "x", token="abc123")),
        secret_in("credentials", {"user": "ada"}),
        secret_in("auth", ("ada", "abc")),
        secret_in("headers", {"Authorization": "Basic YWRhOmFiYw"}),
    ]
    assert found == [
        "CONFIG['db']['password']",
        "client.api_key",
        "space.secret",
        "token (an argument of call)",
        "credentials['user']",
        "auth",
        "headers['Authorization']",
    ]


def test_slots_and_defaults():
    """Slots, defaults and closures are looked at."""
    slotted = Slotted()
    slotted.password = "abc"

    def load(url, *, api_key="abc"):
        return url, api_key

    assert [secret_in("s", slotted), secret_in("f", load)] == [
        "s.password",
        "api_key (a default of load())",
    ]


@pytest.mark.slow
def test_circles_and_large_containers_end():
    """A container that contains itself, or a huge one, is searched to a bound."""
    circle = [range(3)]
    circle.append(circle)
    assert [secret_in("x", circle), secret_in("x", ["word"] * 1_000_000)] == [None, None]


def test_value_of_a_secret_variable(monkeypatch):
    """The value of a secret of the environment is one anywhere, also inside a text."""
    monkeypatch.setenv("SERVICE_PASSWORD", "correct horse")
    texts = ["x", "say: correct horse!"]
    assert [secret_in("x", text) for text in texts] == [None, "x"]


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_value_of_a_secret_variable_in_base64(monkeypatch, encode):
    """It is one inside of data, too, also in the letters that addresses have."""
    monkeypatch.setenv("SERVICE_PASSWORD", "??>correct>>horse~~~")
    data = b"What follows is long: " * 4 + b"??>correct>>horse~~~" + b", and that was it." * 2
    texts = [encode(data).decode(), encode(data.swapcase()).decode()]
    assert [secret_in("x", text) for text in texts] == ["x", None]


@pytest.mark.parametrize(
    "text",
    [
        "API_KEY = 'abc123'",
        "x, password = 1, 'abc'",
        "c.api_key = 'abc'",
        "c['token'] = 'abc123'",
        "Client(api_key='abc')",
        "CONFIG = {'db': {'password': 'abc'}}",
        "def f(x, *, secret='abc'): pass",
        "SECRETS = ['abc', 'def']",
        "os.environ['HF_TOKEN'] = 'abc'",
        "key = os.getenv('API_KEY') or 'abc'; api_key = None or 'abc'",
        f"x = f'{{y}} {HF}'",
        "x = 'hf_abcdefgh' + 'ijklmnopqrstuvwx'",
        "x = 1  # API_KEY = 'abc123'",
        f"x = 1  # {HF}",
        f"def f():\n    '''Use {HF}.'''",
        "if password == 'abc': pass",
        "password: int = 1234",
        f"broken( '{HF}'",
        *TOLD.values(),
    ],
)
def test_secret_in_source(text):
    """A literal that is a secret is found wherever it stands in source."""
    assert secret_in_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "TOKEN = os.environ.get('HF_TOKEN')",
        "TOKEN = os.environ['HF_TOKEN']",
        "TOKEN = os.getenv('HF_TOKEN', '')",
        "password = getpass.getpass('Password: ')",
        "pad_token = '<pad>'",
        "tokenizer(x, max_tokens=5, return_tensors='pt')",
        "if token == 'the': pass  # a token of the text",
        "api_key = None",
        "def f(token: str, password: str | None = None): return token",
        "",
        *ONLY_SOUNDING.values(),
    ],
)
def test_no_secret_in_source(text):
    """A look-up and ordinary code are none."""
    assert not secret_in_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["a", "aB3-", "word ", "http://", "key is "])
def test_long_text(word: str):
    """A text of any length is looked at once, not once for each of its letters."""
    text = word * 20_000
    assert not secret_in_text(f"x = {text!r}  # {text}")


def login(password, x):
    """Take a password."""
    return password, x


def test_secret_in_a_partial():
    """An argument of a partial is known by the name that its function gives it."""
    assert secret_in("read", functools.partial(login, WORD)) == "password (an argument of read)"


def test_secret_in_a_pair():
    """The second of a pair is known by the first; numbers of words are none."""
    found = [secret_in("held", value) for value in ([("password", WORD)], {"pin": 7000, "a": 1})]
    assert found == ["held[0]", None]


def test_scrubbed(monkeypatch):
    """Secrets in a text become asterisks; the rest stays."""
    monkeypatch.setenv("HF_TOKEN", "a-long-value")
    texts = [f"got {HF} here", "x a-long-value y", "at http://a:b1@c/d", "password='abc', size=3"]
    assert [redacted(text) for text in texts] == [
        "got *** here",
        "x *** y",
        "at http://a:***@c/d",
        "password='***', size=3",
    ]


def test_scrubbed_leaves_code_alone():
    """Ordinary source is not changed."""
    with open(__file__.replace("test_secrets", "__init__"), encoding="utf-8") as file:  # noqa: PTH123
        text = file.read() + "def decode(path, *, size=3):\n    return path.name[:size]\n"
    assert redacted(text) == text
