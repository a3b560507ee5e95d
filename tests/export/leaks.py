# ruff: noqa: E501 - each way is one line
"""Leaks: ways in which a secret may come into what is exported; each has secrets of its own.

In a text, `$WORD` stands for a password that looks like a word, `$DENSE` for a random-looking key,
and so on; `filled` gives the text, and all the forms in which its secrets would be seen.
"""

import base64
import urllib.parse
from typing import NamedTuple

FRAME = """
import os
import nbpipe
{made}
"""
STAGE = """
def decode(x):
    return ({read}, x)
"""
CHAIN = """
pipe = nbpipe.source(range(2)).map(decode)
"""


class Way(NamedTuple):
    """A way to leak.

    Attributes:
        made: lines above the stage; they may define `decode` themselves, or `pipe`.
        read: what the stage reads.
    """

    made: str
    read: str = "HELD"


def secrets_of(number: int) -> dict[str, str]:
    """Give the secrets of one way, by what stands for them; those of no two ways are alike."""
    tail = f"{number:03}"
    word = f"hunter{tail}kx7"
    basic = base64.b64encode(f"bob:{word}".encode()).decode()
    hexadecimal = f"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b8{tail}"
    return {
        "$WORD": word,
        "$BASIC": basic,
        "$QUOTED": urllib.parse.quote(f"{word}/+&") + "z",
        "$DENSE": f"aB3xY9qLmN2pR7sT5v{tail}Wz",
        "$SLASHED": f"wJalrXUtnFEMI/K7MDENG+bPxRfiCY{tail}EXKEY",
        "$HEX": hexadecimal,
        "$HF": f"hf_abcdefghijKLmnopqrstuv{tail}",
        "$GHP": f"ghp_abcdefghijklmnopqrstuvwxyz012345{tail}",
        "$PAT": f"github_pat_11ABCDEFG0abcdefghij{tail}",
        "$SK": f"sk-proj-abcdefgh1jklmnopqrst{tail}",
        "$AKIA": f"AKIAABCDEFGHIJKLM{tail}",
        "$XOX": f"xoxb-123456789012-abcdef{tail}",
        "$AIZA": f"AIzaSyAbcdefghijklmnopqrstuvwxyz012{tail}",
        "$JWT": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx{tail}.c2lnbmF0dXJl{tail}",
        "$PEM": f"MIIEpAIBAAKCAQEA7{tail}bq",
    }


PEM = "-----BEGIN RSA PRIVATE KEY-----\\n$PEM\\n-----END RSA PRIVATE KEY-----"
CLASS = "class Hub:\n    def __init__(self, {p}):\n        self.{a} = {p}\n"
REFUSED: dict[str, Way] = {
    # -- by the name of what holds it
    "variable": Way('API_KEY = "$WORD"', "API_KEY"),
    "camel case": Way('dbPassword = "$WORD"', "dbPassword"),
    "short name": Way('DB_PASS = "$WORD"', "DB_PASS"),
    "pw": Way('pw = "$WORD"', "pw"),
    "passcode": Way('passcode = "$WORD"', "passcode"),
    "bytes": Way('SECRET = b"$WORD"', "SECRET"),
    "bytearray": Way('SECRET = bytearray(b"$WORD")', "SECRET"),
    "annotated": Way('SECRET: str = "$WORD"', "SECRET"),
    "unpacked": Way('user, password = "bob", "$WORD"', "user, password"),
    "walrus": Way('HELD = [password := "$WORD"]'),
    "list": Way('PASSWORDS = ["$WORD"]', "PASSWORDS"),
    "list of tokens": Way('HELD = {"tokens": ["$DENSE"]}'),
    "nested": Way('HELD = {"db": [{"user": "bob", "password": "$WORD"}]}'),
    "deep": Way('HELD = [[[[[[[[[[{"password": "$WORD"}]]]]]]]]]]'),
    "behind many": Way('HELD = {"a": list(range(9000)), "password": "$WORD"}'),
    "behind many made": Way(
        'def make():\n    return "$WORD"\nHELD = {"a": list(range(30000)), "password": make()}'
    ),
    "pair": Way('HELD = [("password", "$WORD")]'),
    "credentials": Way('HELD = {"credentials": {"user": "bob", "value": "$WORD"}}'),
    "auth pair": Way('HELD = {"auth": ("bob", "$WORD")}'),
    "auth list": Way('HELD = {"auth": ["bob", "$WORD"]}'),
    "dataclass": Way(
        "from dataclasses import dataclass\n@dataclass\nclass Hub:\n    url: str\n"
        '    api_key: str\nHELD = Hub("u", "$WORD")'
    ),
    "default of a field": Way(
        "from dataclasses import dataclass\n@dataclass\nclass Hub:\n    url: str\n"
        '    api_key: str = "$WORD"\nHELD = Hub("u")'
    ),
    "named tuple": Way(
        "from collections import namedtuple\nHub = namedtuple('Hub', 'url password')\n"
        'HELD = Hub("u", "$WORD")'
    ),
    "attribute": Way(CLASS.format(p="value", a="password") + 'HELD = Hub("$WORD")'),
    "attribute set": Way('class Hub:\n    pass\nHELD = Hub()\nHELD.password = "$WORD"'),
    "attribute of a class": Way('class Hub:\n    password = "$WORD"\nHELD = Hub()'),
    "enum": Way('import enum\nclass Hub(enum.Enum):\n    PASSWORD = "$WORD"\nHELD = Hub.PASSWORD'),
    "slots": Way(
        'class Hub:\n    __slots__ = ("password",)\nHELD = Hub()\nHELD.password = "$WORD"'
    ),
    "namespace": Way('from types import SimpleNamespace\nHELD = SimpleNamespace(password="$WORD")'),
    "partial": Way(
        "import functools\ndef get(x, password):\n    return x\n"
        'decode = functools.partial(get, password="$WORD")'
    ),
    "partial by place": Way(
        "import functools\ndef get(password, x):\n    return x\n"
        'decode = functools.partial(get, "$WORD")'
    ),
    "partial of a partial": Way(
        "import functools\ndef get(password, user, x):\n    return x\n"
        'decode = functools.partial(functools.partial(get, "$WORD"), "bob")'
    ),
    "partial in the chain": Way(
        "import functools\ndef get(x, password):\n    return x\n"
        'pipe = nbpipe.source(range(2)).map(functools.partial(get, password="$WORD"))'
    ),
    "auth of a partial": Way(
        "import functools\ndef get(x, auth):\n    return x\n"
        'decode = functools.partial(get, auth=("bob", "$WORD"))'
    ),
    "closure": Way(
        "def make(password):\n    def inner(x):\n        return len(password) + x\n"
        '    return inner\ndecode = make("$WORD")'
    ),
    "closure in a container": Way(
        "def make(token):\n    def inner(x):\n        return len(token) + x\n"
        '    return inner\nHELD = [make("$DENSE")]'
    ),
    "default": Way('def decode(x, password="$WORD"):\n    return x'),
    "keyword default": Way('def decode(x, *, password="$WORD"):\n    return x'),
    "default of a lambda": Way('decode = lambda x, password="$WORD": x'),
    "inside": Way('def decode(x):\n    password = "$WORD"\n    return x'),
    "compared": Way('def decode(x):\n    return x == 3 and password == "$WORD"\npassword = None'),
    "keyword": Way('def decode(x):\n    return dict(password="$WORD", x=x)'),
    "joined": Way('def decode(x):\n    password = "".join(["$WORD", "!"])\n    return x'),
    "encoded": Way('def decode(x):\n    password = "$WORD".encode()\n    return x'),
    "reversed": Way('def decode(x):\n    password = str("$WORD")\n    return x'),
    "chosen": Way('def decode(x):\n    password = "$WORD" if x else ""\n    return x'),
    "formatted": Way('def decode(x):\n    password = "{}-$WORD".format(x)\n    return x'),
    "or": Way('PASSWORD = os.environ.get("NONE_SUCH") or "$WORD"', "PASSWORD"),
    "fallback": Way('PASSWORD = os.environ.get("NONE_SUCH", "$WORD")', "PASSWORD"),
    "fallback of a named look-up": Way('HELD = os.getenv("DB_PASSWORD", "$WORD")'),
    "set in the environment": Way(
        'def decode(x):\n    os.environ["DB_PASSWORD"] = "$WORD"\n    return x'
    ),
    "set by default": Way(
        'def decode(x):\n    os.environ.setdefault("DB_PASSWORD", "$WORD")\n    return x'
    ),
    "put into the environment": Way(
        'def decode(x):\n    os.putenv("DB_PASSWORD", "$WORD")\n    return x'
    ),
    "attribute assigned": Way('def decode(x):\n    x.password = "$WORD"\n    return x'),
    "setattr": Way('def decode(x):\n    setattr(x, "password", "$WORD")\n    return x'),
    "pin": Way("def unlock(pin):\n    return pin\nHELD = unlock(4711)\npin = 4711", "pin, unlock"),
    "docstring": Way('def decode(x):\n    """Log in: password=$WORD."""\n    return x'),
    "docstring of a class": Way('class Hub:\n    """Use $HF."""\nHELD = Hub()'),
    "comment": Way("HELD = 3  # password: $WORD"),
    "comment above": Way('# api_key = "$WORD"\nHELD = 3'),
    "comment in a function": Way("def decode(x):\n    # login bob:$HF\n    return x"),
    "comment of a sentence": Way("HELD = 3  # the password is $WORD"),
    "secret type": Way(
        "class SecretStr:\n    def __init__(self, v):\n        self.v = v\n"
        'HELD = {"x": SecretStr("$WORD")}'
    ),
    "one word": Way('dbpassword = "$WORD"', "dbpassword"),
    "client's": Way('clientSecret = "$WORD"', "clientSecret"),
    "abbreviated": Way('PSWD = "$WORD"', "PSWD"),
    "master key": Way('MASTER_KEY = "$WORD"', "MASTER_KEY"),
    "sas token": Way('SAS_TOKEN = "$WORD"', "SAS_TOKEN"),
    "pair in a list": Way('HELD = [["password", "$WORD"]]'),
    "pair in a list made": Way('HELD = []\nHELD.append(["password", "$WORD"])'),
    "key of several": Way('HELD = {("db", "password"): "$WORD"}'),
    "key of bytes": Way('HELD = {b"password": b"$WORD"}'),
    "in a field": Way(
        "from dataclasses import dataclass, field\n@dataclass\nclass Hub:\n"
        '    password: str = field(default="$WORD")\n',
        "Hub",
    ),
    "made by a field": Way(
        "from dataclasses import dataclass, field\n@dataclass\nclass Hub:\n"
        '    password: str = field(default_factory=lambda: "$WORD")\n',
        "Hub",
    ),
    "letters in a function": Way(
        "def decode(x):\n    password = bytes([104, 117, 110, 116, 101, 114, 50])\n    return x"
    ),
    "in an f-string of its own": Way(
        'def decode(x):\n    return {"Authorization": f"token {\'$WORD\'}", "x": x}'
    ),
    "global by name": Way('def decode(x):\n    globals()["PASSWORD"] = "$WORD"\n    return x'),
    "decorator": Way(
        "def signed(**more):\n    return lambda f: f\n"
        '@signed(password="$WORD")\ndef decode(x):\n    return x'
    ),
    "method's default": Way(
        'class Hub:\n    def get(self, password="$WORD"):\n        return 3\nHELD = Hub()'
    ),
    "class in a class": Way(
        'class Hub:\n    class Inner:\n        password = "$WORD"\nHELD = Hub()'
    ),
    "argument of an error": Way('HELD = [ValueError("$HF")]'),
    "comment in quotes": Way("HELD = 3  # the password '$WORD' is to go"),
    "cached": Way(
        "import functools\ndef make(password):\n    @functools.lru_cache\n    def inner(x):\n"
        '        return len(password) + x\n    return inner\ndecode = make("$WORD")'
    ),
    "name of a stage": Way('pipe = nbpipe.source(range(2)).map(str, name="$HF")'),
    # -- by what it looks like
    "hugging face": Way('HELD = "$HF"'),
    "github": Way('HELD = "$GHP"'),
    "github fine-grained": Way('HELD = "$PAT"'),
    "openai": Way('HELD = "$SK"'),
    "aws id": Way('HELD = "$AKIA"'),
    "aws secret": Way('HELD = {"key": "$AKIA", "secret": "$SLASHED"}'),
    "aws secret alone": Way('HELD = {"key": "$SLASHED"}'),
    "slack": Way('HELD = "$XOX"'),
    "google": Way('HELD = "$AIZA"'),
    "jwt": Way('HELD = "$JWT"'),
    "private key": Way(f'HELD = "{PEM}"'),
    "private key in json": Way(f"HELD = {{'type': 'service_account', 'data': '{PEM}'}}"),
    "dense": Way('HELD = "$DENSE"'),
    "hexadecimal key": Way('HELD = {"key": "$HEX"}'),
    "key of a mapping": Way('HELD = {"$HF": 3}'),
    "member of a set": Way('HELD = {"$HF"}'),
    "byte string": Way('HELD = [b"$HF"]'),
    "path": Way('from pathlib import Path\nHELD = Path("/data/$HF/x")'),
    "pattern": Way('import re\nHELD = re.compile("$HF")'),
    "f-string": Way('HELD = f"Bearer $HF {os.sep}"'),
    "added": Way('def decode(x):\n    return "hf_" + "$HF"[3:] if x < 0 else x'),
    "telegram": Way('HELD = "https://api.telegram.org/bot1234567890:AAF$DENSE-abcdefghijk/get"'),
    # -- in addresses
    "login in a url": Way('HELD = "postgres://bob:$WORD@db.example.org/data"'),
    "slash in a password": Way('HELD = "postgres://bob:$WORD/x@db.example.org/data"'),
    "token as a user": Way('HELD = "https://$DENSE@git.example.org/bob/data.git"'),
    "api key": Way('HELD = "https://api.example.org/v1/get?size=3&api_key=$WORD"'),
    "apikey": Way('HELD = "https://api.example.org/v1/get?apikey=$WORD&size=3"'),
    "access token": Way('HELD = "https://api.example.org/get?access_token=$WORD"'),
    "token in a query": Way('HELD = "https://api.example.org/get?token=$WORD"'),
    "password in a query": Way('HELD = "https://api.example.org/get?user=bob&password=$WORD"'),
    "quoted": Way('HELD = "https://api.example.org/get?password=$QUOTED"'),
    "key in a query": Way('HELD = "https://maps.example.org/get?key=$DENSE"'),
    "fragment": Way('HELD = "https://app.example.org/#access_token=$WORD"'),
    "list of urls": Way('pipe = nbpipe.source(["https://x.org/a?api_key=$WORD"]).map(len)'),
    "amazon": Way('HELD = "https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature=$HEX"'),
    "amazon of old": Way('HELD = "https://b.s3.amazonaws.com/k?Signature=$QUOTED&Expires=17"'),
    "google storage": Way('HELD = "https://storage.googleapis.com/b/k?X-Goog-Signature=$HEX"'),
    "azure": Way('HELD = "https://b.blob.core.windows.net/c/k?sv=2022-11-02&sig=$QUOTED%3D"'),
    "azure account": Way('HELD = "DefaultEndpointsProtocol=https;AccountKey=$SLASHED=="'),
    "slack webhook": Way('HELD = "https://hooks.slack.com/services/T0AB/B0CD/$DENSE"'),
    "discord webhook": Way('HELD = "https://discord.com/api/webhooks/1234567890/$DENSE-x_y"'),
    "teams webhook": Way(
        'HELD = "https://x.webhook.office.com/webhookb2/a@b/IncomingWebhook/$HEX"'
    ),
    "bytes of a url": Way('HELD = b"https://api.example.org/get?api_key=$WORD"'),
    # -- in text of other kinds
    "json": Way('HELD = \'{"user": "bob", "password": "$WORD"}\''),
    "json of bytes": Way('HELD = b\'{"api_key": "$WORD"}\''),
    "yaml": Way('HELD = "user: bob\\npassword: $WORD\\n"'),
    "yaml in quotes": Way('HELD = """\ndb:\n  password: "$WORD"\n"""'),
    "env file": Way('HELD = "USER=bob\\nDB_PASSWORD=$WORD\\n"'),
    "exported": Way('HELD = "export API_KEY=$WORD"'),
    "ini": Way('HELD = "[db]\\nuser = bob\\npassword = $WORD\\n"'),
    "toml": Way("HELD = \"[db]\\npassword = '$WORD'\\n\""),
    "netrc": Way('HELD = "machine example.org login bob password $WORD"'),
    "odbc": Way('HELD = "Driver={SQL};Server=s;Uid=bob;Pwd=$WORD;"'),
    "libpq": Way('HELD = "host=h dbname=d user=bob password=$WORD"'),
    "xml": Way('HELD = "<login><password>$WORD</password></login>"'),
    "command line": Way('HELD = "curl -u bob:$WORD https://example.org"'),
    "arguments": Way('HELD = ["curl", "-u", "bob:$WORD", "https://example.org"]'),
    "option": Way('HELD = "login --user bob --password $WORD"'),
    "option of a list": Way('HELD = ["login", "--password", "$WORD"]'),
    "glued option": Way('def decode(x):\n    return ["mysql", "-u", "bob", "-p$WORD", x]'),
    "glued option made": Way('HELD = []\nHELD += ["mysql", "-u", "bob", "-p$WORD"]'),
    "named option": Way('def decode(x):\n    return ["run", "--password=$WORD", x]'),
    "template": Way('def decode(x):\n    return "https://bob:%s@h.org/%s" % ("$WORD", x)'),
    "format": Way('def decode(x):\n    return "https://bob:{}@h.org/{}".format("$WORD", x)'),
    "sql": Way("HELD = \"CREATE USER bob IDENTIFIED BY '$WORD'\""),
    "sql password": Way("HELD = \"ALTER USER bob WITH PASSWORD '$WORD'\""),
    "javascript": Way("HELD = \"const config = {apiKey: '$AIZA', password: '$WORD'}\""),
    "proxy": Way('HELD = {"http": "http://bob:$WORD@proxy:8080"}'),
    "redis": Way('HELD = "redis://:$WORD@cache:6379/0"'),
    "jdbc": Way('HELD = "jdbc:postgresql://h/db?user=bob&password=$WORD"'),
    "service bus": Way('HELD = "Endpoint=sb://x.net/;SharedAccessKey=$SLASHED="'),
    "cloud front": Way('HELD = "https://d.cloudfront.net/k?Policy=a&Signature=$DENSE"'),
    "environment of a process": Way(
        'def decode(x):\n    return dict(env={"DB_PASSWORD": "$WORD"}, x=x)'
    ),
    "creds": Way('creds = ("bob", "$WORD")', "creds"),
    "worker_init": Way(
        "import functools\ndef init(password=None):\n    pass\n"
        'pipe = nbpipe.source(range(2)).map(str, executor="process", '
        'worker_init=functools.partial(init, password="$WORD"))'
    ),
    "bound method": Way(
        CLASS.format(p="api_key", a="_k")
        + "    def get(self, x):\n        return x\n"
        + 'pipe = nbpipe.source(range(2)).map(Hub(api_key="$WORD").get)'
    ),
    "header": Way('HELD = {"Authorization": "Bearer $WORD"}'),
    "header in a function": Way(
        'def decode(x):\n    return dict(headers={"Authorization": "Basic $BASIC"}, x=x)'
    ),
    "header as text": Way('HELD = "Authorization: Basic $BASIC"'),
    "bearer": Way('HELD = "Bearer $WORD"'),
    "basic": Way('HELD = "Basic $BASIC"'),
    "header of a key": Way('HELD = {"X-Api-Key": "$WORD"}'),
    "cookie": Way('HELD = {"Cookie": "sessionid=$DENSE; theme=dark"}'),
    "cookies": Way('HELD = {"cookies": {"sessionid": "$DENSE"}}'),
    # -- as arguments of others' functions
    "boto3": Way(
        'def decode(x):\n    return dict(aws_access_key_id="$AKIA", '
        'aws_secret_access_key="$SLASHED", x=x)'
    ),
    "storage options": Way('HELD = dict(storage_options={"key": "$AKIA", "secret": "$WORD"})'),
    "requests": Way('def decode(x):\n    return dict(auth=("bob", "$WORD"), x=x)'),
    "basic auth": Way(
        "class HTTPBasicAuth:\n    def __init__(self, username, password):\n"
        '        self.username, self.password = username, password\nHELD = HTTPBasicAuth("b", "$WORD")'
    ),
    "basic auth of a library": Way(
        'import urllib.request as r\ndef decode(x):\n    r.HTTPBasicAuth("bob", "$WORD")\n    return x'
    ),
    "login": Way(
        'import smtplib\ndef decode(x):\n    smtplib.SMTP("h").login("bob", "$WORD")\n    return x'
    ),
    "keyring": Way(
        'def decode(x):\n    keyring.set_password("service", "bob", "$WORD")\n    return x\n'
        "import sys as keyring"
    ),
    "hmac": Way('import hmac\ndef decode(x):\n    hmac.new(b"$DENSE", b"x", "md5")\n    return x'),
    # -- by position, in calls of functions that call it a password
    **{
        f"by position: {call}": Way(
            f"def decode(x):\n    import {library}\n    {call}\n    return x"
        )
        for library, call in (
            ("pymysql", 'pymysql.connect("db", "alice", "$WORD")'),
            ("pymysql as db", 'db.connect("db", "alice", "$WORD")'),
            ("MySQLdb", 'MySQLdb.connect("db", "alice", "$WORD", "data")'),
            ("redis", 'redis.Redis("host", 6379, 0, "$WORD")'),
            ("psycopg2", 'psycopg2.connect("dbname=data user=alice password=$WORD")'),
            ("pymongo", 'pymongo.MongoClient("mongodb://alice:$WORD@host:27017")'),
            ("pymongo", 'pymongo.MongoClient("host").admin.authenticate("alice", "$WORD")'),
            ("ftplib", 'ftplib.FTP("host", "alice", "$WORD")'),
            ("paramiko", 'paramiko.SSHClient().connect("host", 22, "alice", "$WORD")'),
            ("boto3", 'boto3.client("s3", None, None, True, None, None, "id", "$WORD")'),
            ("boto3", 'boto3.Session("id", "$WORD").client("s3")'),
            ("minio", 'minio.Minio("host", "alice", "$WORD")'),
            ("snowflake.connector", 'snowflake.connector.connect(user="a", password="$WORD")'),
            ("elasticsearch", 'elasticsearch.Elasticsearch(["h"], http_auth=("alice", "$WORD"))'),
            ("elasticsearch", 'elasticsearch.Elasticsearch(["h"], basic_auth="alice:$WORD")'),
            (
                "urllib.parse",
                'urllib.parse.urlunsplit(("https", "alice:$WORD@host.org", "", "", ""))',
            ),
            ("sqlalchemy", 'sqlalchemy.URL.create("postgresql", "alice", "$WORD", "host")'),
            ("requests", 'requests.Session().put("url", None, auth=("alice", "$WORD"))'),
        )
    },
    "by position, of an object": Way(
        "def decode(x):\n    import paramiko\n    with paramiko.SSHClient() as client:\n"
        '        client.connect("host", 22, "alice", "$WORD")\n    return x'
    ),
    "by position, from a variable": Way(
        "def decode(x):\n    import pymysql\n    k = '$WORD'\n"
        '    pymysql.connect("db", "alice", k)\n    return x'
    ),
    "by position, from a constant": Way(
        "K = '$WORD'\ndef decode(x):\n    import pymysql\n"
        '    pymysql.connect("db", "alice", K)\n    return x'
    ),
    "by position, from a star": Way(
        "WHERE = ('db', 'alice', '$WORD')\ndef decode(x):\n    import pymysql\n"
        "    pymysql.connect(*WHERE)\n    return x"
    ),
    "by position, through a function": Way(
        'def opened(k):\n    import pymysql\n    return pymysql.connect("db", "alice", k)\n'
        'def decode(x):\n    opened("$WORD")\n    return x'
    ),
    "by position, in a thread": Way(
        "def decode(x):\n    import pymysql\n"
        '    x.submit(pymysql.connect, "db", "alice", "$WORD")\n    return x'
    ),
    "by position, of a live class": Way(
        "from ftplib import FTP\ndef decode(x):\n    FTP('host', 'alice', '$WORD')\n    return x"
    ),
    "by position, of a live function": Way(
        "import urllib.request as request\ndef decode(x):\n"
        "    request.HTTPPasswordMgr().add_password('r', 'u', 'alice', '$WORD')\n    return x"
    ),
    "partial of a library's by position": Way(
        "import functools, ftplib\nHELD = functools.partial(ftplib.FTP, 'host', 'alice', '$WORD')"
    ),
    "partial of a method by position": Way(
        "import functools, smtplib\n"
        "HELD = functools.partial(smtplib.SMTP.login, None, 'alice', '$WORD')"
    ),
    # -- in arrays
    "array": Way('import numpy as np\nHELD = np.array(["$HF"] * 2)'),
    "array of bytes": Way('import numpy as np\nHELD = np.array([b"$HF"] * 2)'),
    "large array": Way('import numpy as np\nHELD = np.array(["word"] * 99 + ["$HF"])'),
    "large array of bytes": Way('import numpy as np\nHELD = np.array([b"word"] * 99 + [b"$HF"])'),
    "large dense array": Way('import numpy as np\nHELD = np.array(["word"] * 99 + ["$DENSE"])'),
    "named array": Way('import numpy as np\nPASSWORDS = np.array(["$WORD"] * 99)', "PASSWORDS"),
    "array of tokens": Way('import numpy as np\nTOKENS = np.array(["$DENSE"] * 99)', "TOKENS"),
    "array of objects": Way(
        'import numpy as np\nHELD = np.array(["$HF", {"password": "$WORD"}], dtype=object)'
    ),
    "structured array": Way(
        "import numpy as np\n"
        'HELD = np.array([("bob", "$WORD")] * 99, dtype=[("user", "U9"), ("password", "U30")])'
    ),
    "array in a mapping": Way('import numpy as np\nHELD = {"password": np.array(["$WORD"])}'),
    "scalar array in a mapping": Way('import numpy as np\nHELD = {"password": np.array("$WORD")}'),
    "array of letters": Way(
        'import numpy as np\nHELD = {"password": np.frombuffer(b"$WORD", dtype="uint8")}'
    ),
    "array of numbers": Way(
        'import numpy as np\nHELD = np.frombuffer(b"$HF" + bytes(99), dtype="uint8")'
    ),
    "numpy scalar": Way('import numpy as np\nHELD = {"password": np.str_("$WORD")}'),
    "list of letters": Way('PASSWORD = list(b"$WORD")', "PASSWORD"),
    "array in a function": Way(
        'import numpy as np\ndef decode(x):\n    return {"password": np.array(["$WORD"]), "x": x}'
    ),
    "array of wide numbers": Way(
        'import numpy as np\nHELD = np.frombuffer(b"$HF" + bytes(99), "uint8").astype("int64")'
    ),
    "array of records": Way(
        'import numpy as np\nHELD = np.array([b"$HF"] * 99).view("V" + str(len("$HF")))'
    ),
    "array of fields in fields": Way(
        "import numpy as np\nHELD = np.zeros(99, dtype=[('a', [('password', 'U30')])])\n"
        'HELD["a"]["password"] = "$WORD"'
    ),
    "pickled": Way('import pickle\nHELD = pickle.dumps({"password": "$WORD"})'),
    "frame": Way(
        "import sys\nclass Frame:\n    def __init__(self, columns):\n"
        '        self.columns = columns\nHELD = Frame({"password": ["$WORD"]})'
    ),
    # -- objects that resist
    "items that raise": Way(
        "class Odd(dict):\n    def items(self):\n        raise ValueError('no')\n"
        'HELD = {"odd": Odd(a=1), "password": "$WORD"}'
    ),
    "items that raise beside a list": Way(
        "class Odd(dict):\n    def items(self):\n        raise ValueError('no')\n"
        'HELD = [Odd(a=1), ["$HF"]]'
    ),
    "secret where items raise": Way(
        "class Odd(dict):\n    def items(self):\n        raise ValueError('no')\n"
        'HELD = Odd(password="$WORD")'
    ),
    "iteration that raises": Way(
        "class Odd(list):\n    def __iter__(self):\n        raise ValueError('no')\n"
        'HELD = {"odd": Odd(["$HF"])}'
    ),
    "length that raises": Way(
        "class Odd(dict):\n    def __len__(self):\n        raise ValueError('no')\n"
        'HELD = [Odd(password="$WORD")]'
    ),
    "error with the secret in it": Way(
        "class Odd(dict):\n    def items(self):\n        raise ValueError('login $HF failed')\n"
        "HELD = Odd(a=1)"
    ),
    "chain map": Way(
        'from collections import ChainMap\nHELD = ChainMap({}, {"password": "$WORD"})'
    ),
    "user dict": Way('from collections import UserDict\nHELD = UserDict({"password": "$WORD"})'),
    "default dict": Way(
        "from collections import defaultdict\nHELD = defaultdict(list)\n"
        'HELD["password"].append("$WORD")'
    ),
    "deque": Way('from collections import deque\nHELD = deque([{"password": "$WORD"}])'),
    "frozen": Way(
        'from types import MappingProxyType\nHELD = MappingProxyType({"password": "$WORD"})'
    ),
    "text of a class of its own": Way(
        'class Text(str):\n    pass\nHELD = {"password": Text("$WORD")}'
    ),
    # -- taken from elsewhere
    "copied variable": Way('PASSWORD = "$WORD"\nHELD = f"x {PASSWORD}"[:]'),
    "value of a variable": Way(
        'PASSWORD = "$WORD"\nHELD = []\nHELD.append(f"login bob {PASSWORD}")'
    ),
    "another form": Way(
        'import base64\nPASSWORD = "$WORD"\nHELD = []\n'
        'HELD.append(base64.b64encode(f"bob:{PASSWORD}".encode()).decode())'
    ),
    "value of the environment": Way(
        'import functools\nKEY = os.environ["LEAK_PASSWORD"]\nHEADERS = {}\n'
        'HEADERS["X-Thing"] = "for " + KEY',
        "HEADERS",
    ),
    "plainly named variable": Way(
        'KEY = os.environ["LEAK_PLAIN"]\nHEADERS = {}\nHEADERS["X-Thing"] = "for " + KEY', "HEADERS"
    ),
    "computed from the environment": Way(
        'import hashlib\nKEY = os.environ["LEAK_PLAIN"]\n'
        "SIGNED = hashlib.sha256(KEY.encode()).hexdigest()\n"
        'HEADERS = {}\nHEADERS["X-Thing"] = "for " + SIGNED',
        "HEADERS",
    ),
    "partial of the environment": Way(
        'import functools\nKEY = os.environ["LEAK_PASSWORD"]\ndef get(x, header):\n    return x\n'
        'pipe = nbpipe.source(range(2)).map(functools.partial(get, header="for " + KEY))'
    ),
    "typed in": Way(
        'import getpass\nentered = getpass.getpass("?")\nHELD = {}\nHELD["x"] = "for " + entered'
    ),
    "source": Way('pipe = nbpipe.source([{"password": "$WORD"}]).map(len)'),
    "source of text": Way('pipe = nbpipe.source(["$HF", "b"]).map(len)'),
    "source by name": Way('rows = [("bob", "$HF")]\npipe = nbpipe.source(rows).map(len)'),
    "folder": Way(
        'import glob\npipe = nbpipe.source(sorted(glob.glob("/none/$HF/*.png"))).map(len)'
    ),
    # -- given its name by more than an assignment
    "named hole": Way(
        'def decode(x):\n    return "https://{u}:{p}@h.org/{x}".format(u="bob", p="$WORD", x=x)'
    ),
    "hole of a table": Way(
        'def decode(x):\n    return "https://%(u)s:%(p)s@h.org" % {"u": x, "p": "$WORD"}'
    ),
    "loop": Way('def decode(x):\n    for password in ("$WORD", ""):\n        pass\n    return x'),
    "case": Way(
        'def decode(x):\n    match x:\n        case {"password": "$WORD"}:\n            pass\n'
        "    return x"
    ),
    "property": Way(
        'class Hub:\n    @property\n    def api_key(self):\n        return "$WORD"\nHELD = Hub()'
    ),
    "looked up": Way(
        'def get_password():\n    return "$WORD"\ndef decode(x):\n    get_password()\n    return x'
    ),
    "of a user": Way('def decode(x):\n    x.set_password("$WORD")\n    return x'),
    "set-up cell": Way('# %%\n#| nbpipe: setup\nos.environ["A"] = "$HF"\nHELD = os.environ["A"]'),
}


def filled(text: str, number: int) -> tuple[str, list[str]]:
    """Fill in the secrets of a way.

    Returns:
        The text, and the texts that nobody may see.
    """
    held = []
    for mark, secret in secrets_of(number).items():
        if mark in text:
            text = text.replace(mark, secret)
            held.append(secret)
    return text, held


def script(way: Way) -> str:
    """Give a whole script: it ends with a pipeline that uses what holds the secret."""
    text = FRAME.format(made=way.made)
    if "pipe = " in way.made:
        return text
    if "def decode" not in way.made and "decode = " not in way.made:
        text += STAGE.format(read=way.read)
    return text + CHAIN


# What researchers write every day, and is no secret; each line binds one name.
TAME = r"""
EXPECTED_SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
CHECKSUMS = {"train.tar": "d8e8fca2dc0f896fd7cb4cb0031ba249", "b.bin": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}
INTEGRITY = dict(integrity_hash="sha384-oqVuAfXRKap7fdgcCY5uykM6R9GqQ8Kux1rF")
COMMIT = "e83c5163316f89bfbde7d9ab23ca2f94e5d4a12d"
RUN = "550e8400-e29b-41d4-a716-446655440000"
key = "550e8400-e29b-41d4-a716-446655440001"
pad_token = "<pad>"
tokens = ["a", "b", "Ġhello", "##ing", "[CLS]", "abc123"]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "additional_special_tokens": ["<a1>", "<b2>"]}
max_tokens = 512
token_budget = "512 tokens per step"
TOKENIZER = "bert-base-uncased"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MODELS = ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-0.5B", "google/vit-base-patch16-224-in21k"]
URLS = ["https://example.org/data/Train2017/Img0001.png?size=3&version=2", "https://huggingface.co/datasets/a/b/resolve/main/x.parquet?download=true", "https://x.org/search?q=token&page=2&sort_key=date&key=label", "https://docs.example.org/auth/login#password", "https://medium.com:443/@bob/x-1a2b3c", "s3://bucket/train/shard-00001-of-00100.tar", "http://localhost:8080/path/@user", "https://example.org/a?session=3&token=latest&lang=en", "git@github.com:bob/data.git", "https://user@host.org/a"]
FILES = ["ILSVRC2012_val_00000001.JPEG", "n01440764_10026.JPEG", "IMG_20240102_123456.jpg", "part-00000-tid-1234-a1b2.snappy.parquet"]
LABELS = ["cat", "dog", "password", "secret agent", "key", "token"]
ROOT = Path("/data/ImageNet2012/train")
PATTERN = re.compile(r"(?P<key>\w+)=(?P<value>\S+)")
KEYS = ["image_0001", "label", "meta.json", "sample_00012"]
sort_key = "created_at"
COLUMNS = {"password_hash_column": "pwd", "token_ids": [1, 2], "key": "image", "keys": ["input_ids", "attention_mask", "labels2"]}
VOCAB = {"password": 18042, "secret": 1700, "token": 12}
EMBED = {"password": np.array([0.1, 0.2]), "cat": np.array([0.1, 0.4])}
PROMPT = "Password: "
HELP = "Set the environment variable HF_TOKEN=<your token>, or pass token=... to login(); password: the password to use"
TEMPLATE = "postgres://{user}:{password}@host/db"
QUERY = "https://api.example.org/get?api_key={api_key}&size=3"
QUERY2 = "https://api.example.org/get?api_key=%s&size=3"
QUERY3 = "https://api.example.org/get?api_key=YOUR_API_KEY"
YAML = "batch_size: 32\nlr: 3e-4\noptimizer: adamw\nname: resnet50\nseed: 1234\n"
JSON = '{"tokenizer": "bert-base-uncased", "max_tokens": 512, "pad_token": "<pad>", "key": "image"}'
COLOR = "#a1b2c3"
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
DNA = "ACGTACGTACGTACGTACGTACGTACGT"
CHARSET = "0123456789abcdefghijklmnopqrstuvwxyz!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
EXPERIMENT = "exp-12_resnet50_lr3e-4_bs256_seed42"
WNIDS = ["n01440764", "n01443537"]
auth = "author"
user_token = "<|user|>"
assistant_token = "<|assistant|>"
PALETTE = [104, 117, 110, 116, 101, 114]
GRID = {("a", "key"): "image", ("b", "token"): "the"}
CLONE = "git clone https://bob:TOKEN@example.org/data.git"
QUOTED = "the token 'abc' and the key 'image1' of the word 'password'"
author = "Ada Lovelace"
KIND = "Basic usage of the pipeline: token by token"
MIMES = {"Accept": "application/json", "User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
STAMP = "2024-01-02T03:04:05.678Z"
VERSION = "1.2.3+cu121"
LICENCE = "Apache-2.0"
lic_key_path = "/etc/keys/k1.pem"
session = "session_2024_01_02"
signature = "int, str -> bytes"
x_session_id = "run20240102a"
CHECKOUT = str.join("checkout", ("origin", "e83c5163316f89bfbde7d9ab23ca2f94e5d4a12d"))
BUCKET = str.partition("bucket2024/train_2024a", "images2024")
DOCKER = "python:3.11-slim@sha256:abcdef12"
MAIL = "mailto:bob99@example.org"
BRANCH = "hub:resnet50@main"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
""".strip().split("\n")
IMPORTS = """
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import nbpipe
import numpy as np
"""
ORDINARY = """
@dataclass
class Config:
    '''Configuration.

    Args:
        token: str, the token to use.
        api_key: the name of the key, e.g. api_key=key.
        password: required, 8+ characters.
        auth: tuple of (user, password)
    '''

    token: str = ""
    password: str | None = None
    api_key: str = "..."


def images(client, table, column):
    client.open("host2", 3306, "images2024")
    client.get_object("bucket2024", "train/img_0001.png")
    client.checkout("e83c5163316f89bfbde7d9ab23ca2f94e5d4a12d")
    table.groupby("password_hash").select(column, "token2", "label_v2")
    return images(client, "table2", "column3")


def connect(host, user=None, password=None):
    '''Connect, as connect("h", user="bob", password=password).

    >>> connect("h", password="...")
    '''
    if password is None:
        password = user
    return host


def headers(key):
    return {"Authorization": f"Bearer {key}", "X-Api-Key": "{}".format(key), "Auth": "Basic " + key}


def decode(x):
    '''Decode a token: 12 of them. The key is image2; usage: decode(token=tok).'''
    best = max(KEYS, key=len)
    token = tokens[x % 2]  # token: the first one
    key = "image_%05d" % x
    password = Config().password  # password: see the docs
    secret = None
    auth_mode = "basic"
    return sorted(LABELS, key=lambda one: one[::-1])[0], best, token, key
"""


def tame_script() -> str:
    """Give a script whose stage uses all that is no secret."""
    names = ", ".join(line.partition(" = ")[0] for line in TAME)
    stage = f"def every(x):\n    return (decode(x), connect, {names})\n"
    chain = "pipe = nbpipe.source(range(2)).map(every)\n"
    return "\n".join([IMPORTS, *TAME, ORDINARY, stage, chain])
