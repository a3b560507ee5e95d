"""Parameters: a password that a call has by position is found, other arguments are none."""

# ruff: noqa: E501 - each call is one line
import ftplib
import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace

import pytest

from nbpipe.export.argument_names import parameters_of_live
from nbpipe.export.secrets import knowing, secret_in_text, secrets_in_text

# A line break is written as it is in source.
SECRETS = r"""
import pymysql; pymysql.connect("db", "alice", "s3cret")
import pymysql as db; db.connect("db", "alice", "s3cret")
from pymysql import connect; connect("db", "alice", "s3cret")
import redis; redis.Redis("host", 6379, 0, "s3cret")
from redis import Redis as R; R("host", 6379, 0, "s3cret")
import psycopg2; psycopg2.connect("dbname=x user=alice password=s3cret")
import psycopg2; psycopg2.connect("dbname=x user=alice password=hunter")
import MySQLdb; MySQLdb.connect("h", "u", "hunter", "db")
import pymongo; pymongo.MongoClient("mongodb://alice:s3cret@h:27017")
import pymongo; pymongo.MongoClient("h").admin.authenticate("alice", "s3cret")
import smtplib; smtplib.SMTP("h").login("bob", "hunter")
import smtplib\ns = smtplib.SMTP("h")\ns.login("bob", "hunter")
import ftplib; ftplib.FTP("h", "bob", "hunter")
import paramiko; c = paramiko.SSHClient(); c.connect("h", 22, "bob", "hunter")
import paramiko\nwith paramiko.SSHClient() as c:\n    c.connect("h", 22, "bob", "hunter")
import boto3; boto3.client("s3", None, None, True, None, None, "AK", "hunter")
import boto3; boto3.Session("AK", "hunter")
import boto3; boto3.session.Session("AK", "hunter")
from minio import Minio; Minio("h", "user", "hunter")
from requests.auth import HTTPBasicAuth; HTTPBasicAuth("u", "hunter")
import snowflake.connector as s; s.connect(user="u", password="hunter", account="a")
from elasticsearch import Elasticsearch as E; E(["h"], basic_auth=("u", "hunter"))
from elasticsearch import Elasticsearch as E; E(["h"], http_auth=("u", "hunter"))
from elasticsearch import Elasticsearch as E; E(["h"], http_auth="u:hunter")
import requests; requests.get("u", auth=("u", "p4ss"))
import requests; requests.Session().request("GET", "u", None, None, None, None, None, ("u", "hunter"))
A = ("u", "hunter"); import requests; requests.get("u", auth=A)
from urllib.parse import urlunsplit; urlunsplit(("https", "alice:s3cret9@host.org", "", "", ""))
u = "https://" + USER + ":s3cret9@" + HOST
u = f"https://{USER}:s3cret9@{HOST}"
u = "{}://{}:{}@{}".format("postgres", "alice", "s3cret9", "db")
u = "%s://%s:%s@%s" % ("postgres", "alice", "s3cret9", "db")
from sqlalchemy.engine import URL; URL.create("postgresql", "alice", "hunter", "h")
import sqlalchemy as sa; sa.URL.create("postgresql", "alice", "hunter", "h")
import sqlalchemy as sa; sa.create_engine("postgresql://alice:hunter@h/db")
import pymysql; K = "hunter"; pymysql.connect("h", "u", K)
import pymysql; ARGS = ("h", "u", "hunter"); pymysql.connect(*ARGS)
import pymysql; pymysql.connect(*("h", "u", "hunter"))
import pymysql\ndef conn(p):\n    return pymysql.connect("h", "u", p)\ndef f(x):\n    return conn("hunter")
import pymysql\ndef conn(p="hunter"):\n    return pymysql.connect("h", "u", p)
import pymysql\nclass A:\n    def __init__(self, p):\n        self.p = p\n    def go(self):\n        return pymysql.connect("h", "u", self.p)\na = A("hunter")
import pymysql\nCFG = {"p": "hunter"}\npymysql.connect("h", "u", CFG["p"])
import pymysql\nclass A:\n    P = "hunter"\n    def go(self):\n        return pymysql.connect("h", "u", self.P)
import pymysql, functools; f = functools.partial(pymysql.connect, "h", "u", "hunter")
import pymysql; pool.submit(pymysql.connect, "h", "u", "hunter")
import pymysql; opened = pymysql.connect; opened("h", "u", "hunter")
import paramiko\nclass A:\n    def __init__(self):\n        self.c = paramiko.SSHClient()\n    def go(self):\n        self.c.connect("h", 22, "u", "hunter")
import pymysql; f = lambda: pymysql.connect("h", "u", b"hunter")
import aiomysql\nasync def f():\n    await aiomysql.connect("h", "u", "hunter".encode())
from trino.auth import BasicAuthentication; BasicAuthentication("u", "hunter")
x = x.next(); x = y; y = x; x.connect("h", "u", "hunter"); import pymysql; pymysql.connect("h", "u", "hunter")
PASSWORDS = []; PASSWORDS.append("hunter")
HELD["password"].append("hunter"); x.tokens.extend([])
from pydantic import SecretStr; HELD = {"x": SecretStr("hunter")}
def make():\n    return "hunter"\nHELD = {"a": 1, "password": make()}
import imaplib; imaplib.IMAP4("h").login("u", "hunter")
import httpx; httpx.BasicAuth("u", "hunter")
import httpx; httpx.Client(auth=httpx.BasicAuth("u", "hunter"))
import keyring; keyring.set_password("s", "u", "hunter")
x.auth_password("u", "hunter")
def f(host, user, passwd): pass\nf("h", "u", "hunter")
def f(host, user, passwd): pass\np = "hunter"\nf("h", "u", p)
import cx_Oracle; cx_Oracle.connect("scott", "hunter", "dsn")
import pyodbc; pyodbc.connect("DRIVER={x};SERVER=y;UID=bob;PWD=hunter2x")
import pyodbc; pyodbc.connect("DRIVER={x};SERVER=y;UID=bob;PWD=hunter")
import pymysql; pymysql.connect("h", "u", "hun" + "ter")
import pymysql; pymysql.connect("h", "u", "hunter".strip())
import pymysql; pymysql.connect("h", "u", os.environ.get("PW", "hunter"))
import pymysql; pymysql.connect("h", "u", os.environ.get("PW") or "hunter")
import urllib.request as r; r.HTTPPasswordMgr().add_password("realm", "uri", "u", "hunter")
import pymysql\nclass C:\n    def __init__(self):\n        self.db = pymysql\n    def go(self):\n        with pymysql.connect("h", "u", "hunter") as c: pass
""".strip().split("\n")
NONE = r"""
repo.checkout("e83c5163316f89bfbde7d9ab23ca2f94e5d4a12d")
client.get_object("bucket2024", "train/img-0001.png")
import boto3; boto3.client("s3", "eu-west-1")
import redis; redis.Redis("host", 6379, 0)
import pymysql; pymysql.connect("db1", "alice42")
import pymysql; pymysql.connect("h", "u", os.environ["PW"])
import pymysql; pymysql.connect("h", "u", PASSWORD)
import sqlite3; sqlite3.connect("file2.db")
df.groupby("password_hash"); df.sort_values("token2", "x")
import duckdb; duckdb.connect("data2024.db", True)
open("x1.txt", "rb"); dict(a=1).get("key1234567a")
vocab.token_to_id("covid19")
def lookup(token): pass\nlookup("word2vec"); lookup("covid19")
def get(key): pass\nget("n01440764_10026")
hf_hub_download("bert-base", "model.safetensors", "refs/pr/12")
load_dataset("glue", "mrpc", "validation")
connect("localhost", "table2", "column3")
def connect(host, table, column): pass\nconnect("h", "images2024", "label_v2")
conn.execute("select * from t where a = ?", ("x1", "y2"))
model.register("resnet50", "v1.2.3")
DIGEST = "python:3.11-slim@sha256:abcdef12"
MAIL = "mailto:bob99@x.org"; C = "cc:bob99@x.org"
REF = "hf:resnet50@main"; R2 = "user/repo@v2.1"
auth = requests_auth; make("basic_auth", "u")
def headers(key):\n    return {"Authorization": key}\nheaders(os.environ["K"])\nkey = "image_0001"
x = np.load("a1b2c3.npy", "r"); Image.open("img1.png").convert("RGB")
pipe.map(decode).batch(32); nbpipe.source(files, name="files2")
def decode(x, password=None):\n    return x\npipe = source([1]).map(decode)
torch.load("ckpt_2024a.pt", "cuda:0")
np.random.default_rng(1234); random.Random("seed1234")
""".strip().split("\n")


@pytest.mark.parametrize("line", SECRETS)
def test_password_by_position(line):
    """It is found by what the function calls it, whatever it looks like and wherever it is from."""
    assert secret_in_text(line.replace(r"\n", "\n"))


@pytest.mark.parametrize("line", NONE)
def test_no_password(line):
    """Names of tables, files and commits, and what is read at run time, are none."""
    assert list(secrets_in_text(line.replace(r"\n", "\n"))) == []


def opened(host, user, passwd):
    """Stand for a function of a cell."""


LIVE = {
    "opened": opened,
    "hub": SimpleNamespace(opened=opened),
    "FTP": ftplib.FTP,
    "ftp": ftplib.FTP(),
    "Mine": type("Mine", (ftplib.FTP,), {}),
    "Hub": namedtuple("Hub", "url password"),  # noqa: PYI024  as users write it
}


@pytest.mark.parametrize(
    "call",
    [
        "opened('host', 'alice', 'hunter')",
        "hub.opened('host', 'alice', 'hunter')",
        "FTP('host', 'alice', 'hunter')",
        "Hub = namedtuple('Hub', 'url password')\nHub('host', 'hunter')",
        "Mine('host', 'alice', 'hunter')",
        "ftp.login('alice', 'hunter')",
        "Mine().login('alice', 'hunter')",
        "submit(opened, 'host', 'alice', 'hunter')",
    ],
)
def test_live_functions_tell_their_parameters(call):
    """Functions of the notebook are looked at, also methods, subclasses and attributes."""
    with knowing(live=LIVE):
        assert secret_in_text(call)


def test_module_that_is_loaded_tells_its_parameters(monkeypatch):
    """What a text imports is looked at where it is loaded; nothing is imported for it."""
    module = ModuleType("bank_of_mine")
    module.opened = opened
    text = "def f(x):\n    from bank_of_mine import opened\n    opened('host', 'alice', 'hunter')"
    before = secret_in_text(text)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert (before, secret_in_text(text)) == (False, True)


class RunController:
    """Does something when it is asked for an attribute."""

    def __getattr__(self, name):
        raise AssertionError(name)


def test_no_code_of_a_live_object_runs():
    """Attributes of live objects are looked up without calling them."""
    with knowing(live={"remote": RunController()}):
        assert not secret_in_text("remote.opened('host', 'alice', 'hunter'); remote('a', 'b')")
    assert parameters_of_live(RunController()) == []
