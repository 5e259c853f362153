"""A served model, as a function."""
import base64
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Optional, Union

from . import command
from .command import Error

Path = Union[str, os.PathLike[str]]
# The most samples that the server takes in one request, and how long one may take.
MOST, PATIENCE = 10_000, 600.0


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the model says of one sample."""

    index: int
    name: str
    probability: float
    """Of the class that it names."""
    probabilities: Optional[dict[str, float]] = None
    """Of all classes by their names, if an explanation was asked for."""
    expert: Optional[int] = None
    """Which expert decided, if an explanation was asked for and the model has experts."""


class Model:
    """A model that answers until it is closed. `load` makes one; `with` closes it.

    Behind it is `fednode serve`, a process on this machine that nobody else can ask.
    """

    def __init__(self, *arguments: Union[str, os.PathLike[str]]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fednode-")
        access = pathlib.Path(self._folder.name) / "serve.json"
        self._log = (pathlib.Path(self._folder.name) / "log").open("w+b")
        words = [os.fspath(word) for word in arguments]
        line = [os.fspath(command.program()), "serve", *words, "--access-file", os.fspath(access), "--json"]
        self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
                                         start_new_session=True)
        # It prints a line once it listens, or ends.
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise self._failure()
        told = json.loads(access.read_text("utf-8"))
        self._url, self._token = f"http://{told['address']}", told["token"]
        self._lock = threading.Lock()
        # A proxy of the environment is for other machines.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.card: dict[str, Any] = self._ask("GET", "/v1/model", None)
        """Classes, input, measures and provenance."""

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def close(self) -> None:
        """Ends the process behind the model. Twice is once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
        self._folder.cleanup()

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of their numbers."""
        classes: list[str] = self.card["classes"]
        return classes

    def __call__(self, samples: Any, *, explain: bool = False) -> list[Prediction]:
        """Predicts the class of each sample.

        Samples are rows, texts or images, as the model takes them. A row is a mapping by column names, or a sequence in the
        order of the model's columns; None is a gap. An image is the bytes of a PNG or JPEG file, or the path of one. A data
        frame is its rows, an array its first axis.
        """
        whole = _plain(samples)
        kind = "images" if self.card["input"]["kind"] == "image" and _are_images(whole) else "rows"
        samples = [_encoded(sample) for sample in whole] if kind == "images" else whole
        found: list[Prediction] = []
        for start in range(0, len(samples), MOST):
            answer = self._ask("POST", "/v1/predict", {kind: samples[start:start + MOST], "explain": explain})
            found += [_prediction(said) for said in answer["predictions"]]
        return found

    def _ask(self, method: str, path: str, body: Optional[dict[str, Any]]) -> Any:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        with self._lock:
            try:
                with self._opener.open(request, timeout=PATIENCE) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                raise Error(_complaint(error), 4) from None
            except OSError as error:
                if self._process.poll() is not None:
                    raise self._failure() from None
                raise Error(f"the model does not answer: {error}", 5) from None

    def _failure(self) -> Error:
        code = self._process.wait()
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace")
        self.close()
        return Error(command.complaint(said, code), code)


def load(file: Optional[Path] = None, *, state: Optional[Path] = None, backbone: Optional[Path] = None,
         threads: int = 1) -> Model:
    """Opens a model: a file that `fednode export` or a swarm wrote, or that of a node by its state folder.

    `backbone` is the ONNX file through which its federation looks at images.
    """
    if (file is None) == (state is None):
        raise Error("name the file of a model or the state folder of a node, and not both", 2)
    return Model(*command.words(model=file, state=state, backbone=backbone, threads=threads))


def _plain(samples: Any) -> list[Any]:
    """Lists and mappings, of what NumPy and pandas hold as well."""
    if hasattr(samples, "to_dict"):
        return [{name: _gap(value) for name, value in row.items()} for row in samples.to_dict("records")]
    if hasattr(samples, "tolist"):
        samples = samples.tolist()
    if isinstance(samples, (str, bytes, dict)):
        raise Error("give a list of samples, also for a single one", 2)
    return [_sample(sample) for sample in samples]


def _sample(sample: Any) -> Any:
    if isinstance(sample, (str, bytes, os.PathLike)):
        return sample
    if hasattr(sample, "tolist"):
        sample = sample.tolist()
    if isinstance(sample, dict):
        return {name: _gap(value) for name, value in sample.items()}
    return [_gap(value) for value in sample] if isinstance(sample, Iterable) else sample


def _gap(value: Any) -> Any:
    """None for what is not a number, which JSON cannot say."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and value != value else value


def _are_images(samples: Sequence[Any]) -> bool:
    return bool(samples) and all(isinstance(sample, (bytes, str, os.PathLike)) for sample in samples)


def _encoded(image: Union[bytes, Path]) -> str:
    if isinstance(image, bytes):
        return base64.b64encode(image).decode()
    try:
        return base64.b64encode(pathlib.Path(image).read_bytes()).decode()
    except OSError as error:
        raise Error(f"the image `{image}` cannot be read: {error.strerror}", 4) from None


def _prediction(said: dict[str, Any]) -> Prediction:
    explained = said.get("explanation") or {}
    classes = explained.get("classes")
    shares = None if classes is None else {one["name"]: one["probability"] for one in classes}
    return Prediction(said["class"], said["name"], said["probability"], shares, explained.get("expert"))


def _complaint(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (ValueError, KeyError, OSError):
        return f"the model answers with status {error.code}"
