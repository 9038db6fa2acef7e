"""The program that runs inside a companion environment: `python worker.py NAME [CHECKOUT]`.

chatterbox: codes and a voice in, samples out. S3Gen and the Perth watermark are the package's own, and used as its
`generate` does. For comparisons also the mel from given noise, and the language model's scores for given codes.
indextts2: says whether the checkout can be imported, and which packages it has. It makes no sound of codes yet: the
program's own interface takes text, which an export speaks with `load.py`.

Both ends of the pipe use this file: voxgraft imports the messages from it, and another environment runs it by its path.
So it needs numpy only and must not import voxgraft; the upstream packages are imported by name. A message: magic,
length of the header (little endian), the header as JSON with the names, types and shapes of the arrays, then the
arrays' bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROTOCOL = 1
MAGIC = b"VXG1"
MESSAGE_HEAD = struct.Struct("<4sI")
# What comes through the pipe is checked before memory is allocated for it.
MAX_HEADER_BYTES = 1 << 20
MAX_ARRAY_BYTES = 1 << 31
ALLOWED_DTYPES = ("float32", "int64", "int32")
PARENT_POLL_SECONDS = 0.5
EXIT_PARENT_GONE = 3

Arrays = Mapping[str, NDArray[Any]]
WorkerAnswer = tuple[Mapping[str, Any], Mapping[str, Any]]
WorkerHandlers = Mapping[str, Callable[[dict[str, Any], dict[str, Any]], WorkerAnswer]]


class PipeError(Exception):
    """Bytes from the pipe that are no message."""


def build_message(words: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """One message."""
    parts = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    shapes = [[name, str(array.dtype), list(array.shape)] for name, array in parts.items()]
    header = json.dumps({**words, "arrays": shapes}).encode()
    return b"".join([MESSAGE_HEAD.pack(MAGIC, len(header)), header, *(array.tobytes() for array in parts.values())])


def read_message(read: Callable[[int], bytes]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """One message; `read` returns exactly as many bytes as requested."""
    magic, length = MESSAGE_HEAD.unpack(read(MESSAGE_HEAD.size))
    if magic != MAGIC or length > MAX_HEADER_BYTES:
        raise PipeError(f"{magic!r} and a header of {length:,} bytes")
    try:
        words = json.loads(read(length))
        shapes = words.pop("arrays")
        arrays = {}
        for name, dtype, sizes in shapes:
            shape = tuple(sizes)
            is_plain = len(shape) <= 4 and all(type(size) is int and size >= 0 for size in shape)
            if dtype not in ALLOWED_DTYPES or not is_plain:
                raise PipeError(f"an array of {dtype} {shape}")
            num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
            if num_bytes > MAX_ARRAY_BYTES:
                raise PipeError(f"an array of {num_bytes:,} bytes")
            arrays[str(name)] = np.frombuffer(read(num_bytes), dtype).reshape(shape).copy()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PipeError(f"a header that cannot be read: {error}") from None
    return words, arrays


def serve(answers: WorkerHandlers, about: Mapping[str, Any]) -> None:
    """The worker's loop: introduce itself, then answer requests until the pipe is closed.

    Each handler takes values and arrays, and returns values and arrays.
    """
    # Standard output is the pipe, so everything that a library prints goes to standard error.
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    parent = os.getppid()

    def watch() -> None:
        # End when the parent has ended, also in the middle of a request: nobody is left to close the pipe.
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        if os.getpgrp() == os.getpid():  # its own process group: children end with it
            os.killpg(0, signal.SIGKILL)
        os._exit(EXIT_PARENT_GONE)

    threading.Thread(target=watch, daemon=True).start()

    def read_exactly(count: int) -> bytes:
        parts = []
        while count:
            part = os.read(0, min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def send(words: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        left = memoryview(build_message(words, arrays))
        while left:
            left = left[os.write(out, left) :]

    send({"ready": True, "protocol": PROTOCOL, **about})
    while True:
        try:
            words, arrays = read_message(read_exactly)
        except EOFError:
            return
        try:
            said, given = answers[words["ask"]](words, arrays)
        except Exception as error:  # whatever the upstream program raises is reported to the other end
            traceback.print_exc()
            said, given = {"error": f"{type(error).__name__}: {error}"[:2000]}, {}
        send({"id": words.get("id"), **said}, given)


SAMPLE_RATE = 24_000
# Seconds of a recording that S3Gen takes as its reference voice.
REFERENCE_SECONDS = 10
# Voices whose reference is kept instead of computed again.
MAX_CACHED_REFERENCES = 8


class S3GenSynthesizer:
    """Codes to samples. Keeps opened models by path, and references by a hash of their samples."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, str], Any] = {}
        self.references: dict[str, Any] = {}
        self.torch: Any = import_module("torch")
        self.mark: Any = import_module("perth").PerthImplicitWatermarker()

    def sound(self, words: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Samples of an utterance, with the watermark."""
        model = self._model(words["s3gen"], words.get("device", "cpu"))
        reference = self._reference(model, words, arrays)
        # S3Gen starts from noise: with a seed the same codes give the same samples.
        self.torch.manual_seed(int(words.get("seed", 0)))
        with self.torch.inference_mode():
            codes = self.torch.from_numpy(arrays["codes"]).long().to(model.device)
            wave, _ = model.inference(speech_tokens=codes, ref_dict=dict(reference))
        samples = wave.squeeze(0).detach().cpu().numpy()
        marked = self.mark.apply_watermark(samples, sample_rate=SAMPLE_RATE)
        return {"sample_rate": SAMPLE_RATE}, {"samples": marked.astype("float32")}

    def mel(self, words: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The mel of an utterance with given noise [80, frames of reference and utterance]. [80, frames]"""
        model = self._model(words["s3gen"], words.get("device", "cpu"))
        reference = self._reference(model, words, arrays)
        noise, drawn = self.torch.from_numpy(arrays["noise"])[None], self.torch.randn_like
        # The package draws its noise inside of the flow, and nowhere else in it.
        self.torch.randn_like = lambda like, **_: noise.to(like)
        try:
            with self.torch.inference_mode():
                codes = self.torch.from_numpy(arrays["codes"]).long().to(model.device)
                mel = model.flow_inference(codes, ref_dict=dict(reference), finalize=True)
        finally:
            self.torch.randn_like = drawn
        return {}, {"mel": mel[0].detach().cpu().float().numpy()}

    def logits(self, words: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """T3's scores after each code of an utterance. Text with start and stop, codes with start. [codes, rows]"""
        t3 = import_module("chatterbox.models.t3.t3")
        conditions = import_module("chatterbox.models.t3.modules.cond_enc")
        config = import_module("chatterbox.models.t3.modules.t3_config").T3Config
        state = import_module("safetensors.torch").load_file(words["t3"])
        state = {name.removeprefix("t3."): value for name, value in state.items()}
        hp = config.multilingual()
        hp.text_tokens_dict_size = len(state["text_emb.weight"])
        model = t3.T3(hp)
        model.load_state_dict(state)
        model = model.to(words.get("device", "cpu")).eval()
        given = {name: self.torch.from_numpy(array)[None].to(model.device) for name, array in arrays.items()}
        voice = conditions.T3Cond(
            speaker_emb=given["speaker"],
            cond_prompt_speech_tokens=given["prompt"].long(),
            emotion_adv=words["emotion"] * self.torch.ones(1, 1, 1, device=model.device),
        )
        text, codes = given["text"].long(), given["codes"].long()
        lengths = [self.torch.tensor([ids.shape[1]], device=model.device) for ids in (text, codes)]
        with self.torch.inference_mode():
            found = model(
                t3_cond=voice,
                text_tokens=text,
                text_token_lens=lengths[0],
                speech_tokens=codes,
                speech_token_lens=lengths[1],
            )
        return {}, {"logits": found.speech_logits[0].float().cpu().numpy()}

    def _model(self, path: str, device: str) -> Any:
        if (path, device) not in self.models:
            model = import_module("chatterbox.models.s3gen").S3Gen()
            if Path(path).suffix == ".safetensors":
                state = import_module("safetensors.torch").load_file(path)
            else:
                state = self.torch.load(path, map_location="cpu", weights_only=True)
            # Some published files lack two tables of constants, which the model has computed already.
            lacking = model.load_state_dict(state, strict=False)
            known = set(getattr(model, "ignore_state_dict_missing", ()))
            if set(lacking.missing_keys) - known or lacking.unexpected_keys:
                raise ValueError(f"{path} is not a complete S3Gen: {lacking}"[:500])
            self.models[path, device] = model.to(device).eval()
        return self.models[path, device]

    def _reference(self, model: Any, words: dict[str, Any], arrays: dict[str, Any]) -> Any:
        if "reference" not in arrays:
            kept = self.torch.load(words["conditions"], map_location="cpu", weights_only=True)["gen"]
            return {
                name: value.to(model.device) if self.torch.is_tensor(value) else value for name, value in kept.items()
            }
        samples = arrays["reference"][: REFERENCE_SECONDS * SAMPLE_RATE]
        name = hashlib.sha256(samples.tobytes()).hexdigest()
        if name not in self.references:
            while len(self.references) >= MAX_CACHED_REFERENCES:
                self.references.pop(next(iter(self.references)))
            with self.torch.inference_mode():
                self.references[name] = model.embed_ref(samples, SAMPLE_RATE, device=model.device)
        return self.references[name]


def main(name: str, arguments: list[str]) -> None:
    """Load the upstream program, then serve requests."""
    handlers: dict[str, Any] = {}
    packages = ["torch", "numpy", "transformers"]
    if name == "chatterbox":
        # Now, so that a broken environment is noticed before the first request.
        import_module("chatterbox.models.s3gen")
        synthesizer = S3GenSynthesizer()
        handlers |= {"sound": synthesizer.sound, "mel": synthesizer.mel, "logits": synthesizer.logits}
        packages.insert(0, "chatterbox-tts")
    else:
        sys.path.append(arguments[0])
        import_module("indextts.infer_v2")
    serve(handlers, {"program": name, "versions": {package: version(package) for package in packages}})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
