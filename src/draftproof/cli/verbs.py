"""The verbs, in the order in which `--help` lists them."""

from draftproof.cli.audit import audit
from draftproof.cli.bench import bench
from draftproof.cli.chat import chat
from draftproof.cli.demo import demo
from draftproof.cli.env import env
from draftproof.cli.generate import generate
from draftproof.cli.ls import ls
from draftproof.cli.prove import prove
from draftproof.cli.train import train

VERBS = (generate, chat, demo, prove, audit, train, bench, ls, env)
