"""A served model, as a function."""
import base64
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Optional, Union

from . import command
from .command import Error

Path = Union[str, os.PathLike[str]]
# The most samples and bytes of one request, within what the server takes, and how long one may take.
MOST, MOST_BYTES, PATIENCE = 10_000, 7 << 20, 600.0


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the model says of one sample."""

    sample: int
    """Its place among the samples that were asked about."""
    index: int
    """The number of the class; 0 where a number is predicted."""
    name: str
    """Of the class, or of the number that is predicted."""
    probability: Optional[float]
    """Of the class that it names; None where a number is predicted."""
    probabilities: Optional[dict[str, float]] = None
    """Of all classes by their names, if an explanation was asked for."""
    expert: Optional[int] = None
    """Which expert decided, if an explanation was asked for and the model has experts."""
    number: Optional[float] = None
    """The number, where one is predicted."""


class Model:
    """A model that answers until it is closed. `load` makes one; `with` closes it.

    Behind it is `fednode serve`, a process on this machine that nobody else can ask. It ends with this program, however that ends.
    """

    def __init__(self, *arguments: Union[str, os.PathLike[str]]) -> None:
        folder = tempfile.mkdtemp(prefix="fednode-")
        access, log = os.path.join(folder, "serve.json"), os.path.join(folder, "log")
        words = [os.fspath(word) for word in arguments]
        line = [os.fspath(command.program()), "serve", *words, "--access-file", access, "--stop-when-stdin-closes", "--json"]
        with open(log, "wb") as file:
            process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True)
        self._process, self._log = process, log
        self._end = weakref.finalize(self, _end, process, folder, os.getpid())
        self._lock = threading.Lock()
        # A proxy of the environment is for other machines.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        # It prints a line once it listens, or ends.
        assert process.stdout is not None
        if not process.stdout.readline():
            raise self._failure()
        told = json.loads(pathlib.Path(access).read_text("utf-8"))
        self._url, self._token = f"http://{told['address']}", told["token"]

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process behind the model. Twice is once."""
        self._end()

    @property
    def card(self) -> dict[str, Any]:
        """Classes, input, measures, provenance and round. Of a node that trains it may be another one each time."""
        card: dict[str, Any] = self._ask("GET", "/v1/model", None)
        return card

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
        found: list[Prediction] = []
        for part in _parts(_encoded(sample) if kind == "images" else sample for sample in whole):
            body = b'{"%s": [%s], "explain": %s}' % (kind.encode(), b",".join(part), b"true" if explain else b"false")
            answer = self._ask("POST", "/v1/predict", body)
            found += [_prediction(said, len(found) + place) for place, said in enumerate(answer["predictions"])]
        return found

    def _ask(self, method: str, path: str, body: Optional[bytes]) -> Any:
        if not self._end.alive:
            raise Error("the model is closed: `load` opens it again", 7)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, body, headers, method=method)
        with self._lock:
            try:
                with self._opener.open(request, timeout=PATIENCE) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                raise Error(_complaint(error), 5 if error.code >= 500 else 4) from None
            except (OSError, http.client.HTTPException) as error:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1)
                    raise self._failure() from None
                raise Error(f"the model does not answer: {error}", 5) from None

    def _failure(self) -> Error:
        code = self._process.wait()
        said = ""
        with contextlib.suppress(OSError):
            said = pathlib.Path(self._log).read_bytes().decode("utf-8", "replace")
        self.close()
        return Error(command.complaint(said, code), code)


def _end(process: "subprocess.Popen[bytes]", folder: str, owner: int) -> None:
    """Ends a server. It also ends when its standard input closes, which is when this program is gone."""
    if os.getpid() != owner:
        return  # A fork has a copy of all, and the server is not its own.
    if process.stdin is not None:
        process.stdin.close()
    # A fork that still runs holds another end of that input.
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)


def load(file: Optional[Path] = None, *, state: Optional[Path] = None, backbone: Optional[Path] = None,
         threads: int = 1) -> Model:
    """Opens a model: a file that `fednode export` or a swarm wrote, or that of a node by its state folder.

    `backbone` is the ONNX file through which its federation looks at images.
    """
    if (file is None) == (state is None):
        raise Error("name the file of a model or the state folder of a node, and not both", 2)
    return Model(*command.words(model=file, state=state, backbone=backbone, threads=threads))


def _plain(samples: Any) -> list[Any]:
    """A list of samples, of what NumPy and pandas hold as well."""
    if hasattr(samples, "columns") and hasattr(samples, "to_dict"):
        samples = samples.to_dict("records")
    elif hasattr(samples, "index") and hasattr(samples, "to_numpy"):
        samples = samples.to_list()
    elif hasattr(samples, "tolist"):
        samples = samples.tolist()
    if isinstance(samples, (str, bytes, Mapping)) or not isinstance(samples, Iterable):
        raise Error("give a list of samples, also for a single one", 2)
    return [_sample(sample) for sample in samples]


def _sample(sample: Any) -> Any:
    if isinstance(sample, (str, bytes, os.PathLike)):
        return sample
    if not isinstance(sample, Mapping) and hasattr(sample, "to_dict"):
        sample = sample.to_dict()  # A row of a data frame, whose names must not be lost.
    if isinstance(sample, Mapping):
        return {str(name): _value(value) for name, value in sample.items()}
    if hasattr(sample, "tolist"):
        sample = sample.tolist()
    return [_value(value) for value in sample] if isinstance(sample, Iterable) else sample


def _value(value: Any) -> Any:
    """A cell as JSON says it. What is no value is None: None itself, NaN, and pandas' NA and NaT."""
    if hasattr(value, "item"):
        value = value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return None
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _parts(samples: Iterable[Any]) -> Iterator[list[bytes]]:
    """Encodes samples, and divides them among requests that the server takes."""
    part: list[bytes] = []
    size = 0
    for place, sample in enumerate(samples):
        try:
            encoded = json.dumps(sample, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise Error(f"a sample cannot be sent: {error}", 4) from None
        if len(encoded) > MOST_BYTES:
            raise Error(f"sample {place} has {len(encoded) / 2**20:.1f} MiB, and a request {MOST_BYTES >> 20} at most: scale images first", 4)
        if part and (len(part) == MOST or size + len(encoded) > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(encoded)
        size += len(encoded) + 1
    if part:
        yield part


def _are_images(samples: Sequence[Any]) -> bool:
    return bool(samples) and all(isinstance(sample, (bytes, str, os.PathLike)) for sample in samples)


def _encoded(image: Union[bytes, Path]) -> str:
    if isinstance(image, bytes):
        return base64.b64encode(image).decode()
    try:
        return base64.b64encode(pathlib.Path(image).read_bytes()).decode()
    except OSError as error:
        raise Error(f"the image `{image}` cannot be read: {error.strerror}", 4) from None


def _prediction(said: dict[str, Any], sample: int) -> Prediction:
    explained = said.get("explanation") or {}
    classes = explained.get("classes")
    shares = {one["name"]: one["probability"] for one in classes} if classes else None
    return Prediction(
        sample, said["class"], said["name"], said["probability"], shares, explained.get("expert"), said.get("number")
    )


def _complaint(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (ValueError, KeyError, OSError):
        return f"the model answers with status {error.code}"
