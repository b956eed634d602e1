"""memsvc, the service: `Config` (memsvc.toml), `Server` (embedded), and the command line (cli.py)."""

from importlib.metadata import version as _version

from .config import Config
from .server import Server

__version__ = _version("memsvc")

__all__ = ["Config", "Server", "__version__"]
