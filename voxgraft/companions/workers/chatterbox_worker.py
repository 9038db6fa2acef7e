"""Chatterbox's waveform end, in an environment that has the package: codes and a voice in, samples out.

S3Gen and the Perth watermark are the package's own, and used as its `generate` does.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

serving: Any = import_module("serving")
torch: Any = import_module("torch")
perth: Any = import_module("perth")
S3Gen: Any = import_module("chatterbox.models.s3gen").S3Gen
load_file: Any = import_module("safetensors.torch").load_file

SAMPLE_RATE = 24_000
REFERENCE_SECONDS = 10
MAX_CACHED_REFERENCES = 8
"""Voices whose reference is not computed anew."""


class S3GenSynthesizer:
    """What was opened so far: models by path, references by their samples."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, str], Any] = {}
        self.references: dict[str, Any] = {}
        self.mark = perth.PerthImplicitWatermarker()

    def sound(self, words: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Samples of an utterance, marked."""
        model = self._model(words["s3gen"], words.get("device", "cpu"))
        reference = self._reference(model, words, arrays)
        torch.manual_seed(int(words.get("seed", 0)))
        with torch.inference_mode():
            codes = torch.from_numpy(arrays["codes"]).long().to(model.device)
            wave, _ = model.inference(speech_tokens=codes, ref_dict=dict(reference))
        samples = wave.squeeze(0).detach().cpu().numpy()
        marked = self.mark.apply_watermark(samples, sample_rate=SAMPLE_RATE)
        return {"sample_rate": SAMPLE_RATE}, {"samples": marked.astype("float32")}

    def _model(self, path: str, device: str) -> Any:
        if (path, device) not in self.models:
            model = S3Gen()
            is_safe = Path(path).suffix == ".safetensors"
            state = load_file(path) if is_safe else torch.load(path, map_location="cpu", weights_only=True)
            # Two tables of constants are left out of some published files; the model has made them already.
            lacking = model.load_state_dict(state, strict=False)
            known = set(getattr(model, "ignore_state_dict_missing", ()))
            if set(lacking.missing_keys) - known or lacking.unexpected_keys:
                raise ValueError(f"{path} is no whole S3Gen: {lacking}"[:500])
            self.models[path, device] = model.to(device).eval()
        return self.models[path, device]

    def _reference(self, model: Any, words: dict[str, Any], arrays: dict[str, Any]) -> Any:
        if "reference" not in arrays:
            kept = torch.load(words["conditions"], map_location="cpu", weights_only=True)["gen"]
            return {name: value.to(model.device) if torch.is_tensor(value) else value for name, value in kept.items()}
        samples = arrays["reference"][: REFERENCE_SECONDS * SAMPLE_RATE]
        name = hashlib.sha256(samples.tobytes()).hexdigest()
        if name not in self.references:
            while len(self.references) >= MAX_CACHED_REFERENCES:
                self.references.pop(next(iter(self.references)))
            with torch.inference_mode():
                self.references[name] = model.embed_ref(samples, SAMPLE_RATE, device=model.device)
        return self.references[name]


if __name__ == "__main__":
    sounds = S3GenSynthesizer()
    packages = {name: version(name) for name in ("chatterbox-tts", "torch", "numpy", "transformers")}
    serving.serve({"sound": sounds.sound}, {"program": "chatterbox", "versions": packages})
