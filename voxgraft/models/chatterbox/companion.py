"""Chatterbox's own package as a companion: codes and a voice in, samples out.

S3Gen and the Perth watermark are the package's own, and used as its `generate` does. For comparisons also the mel from
given noise, and the language model's scores for given codes. Loaded by `companions/worker.py` in the environment of the
package, so it imports nothing of voxgraft; the upstream packages are imported by name.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

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

    def sound(self, request: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Samples of an utterance, with the watermark."""
        model = self._model(request["s3gen"], request.get("device", "cpu"))
        reference = self._reference(model, request, arrays)
        # S3Gen starts from noise: with a seed the same codes give the same samples.
        self.torch.manual_seed(int(request.get("seed", 0)))
        with self.torch.inference_mode():
            codes = self.torch.from_numpy(arrays["codes"]).long().to(model.device)
            wave, _ = model.inference(speech_tokens=codes, ref_dict=dict(reference))
        samples = wave.squeeze(0).detach().cpu().numpy()
        marked = self.mark.apply_watermark(samples, sample_rate=SAMPLE_RATE)
        return {"sample_rate": SAMPLE_RATE}, {"samples": marked.astype("float32")}

    def mel(self, request: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The mel of an utterance with given noise [80, frames of reference and utterance]. [80, frames]"""
        model = self._model(request["s3gen"], request.get("device", "cpu"))
        reference = self._reference(model, request, arrays)
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

    def logits(self, request: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """T3's scores after each code of an utterance. Text with start and stop, codes with start. [codes, rows]"""
        t3 = import_module("chatterbox.models.t3.t3")
        conditions = import_module("chatterbox.models.t3.modules.cond_enc")
        config = import_module("chatterbox.models.t3.modules.t3_config").T3Config
        state = import_module("safetensors.torch").load_file(request["t3"])
        state = {name.removeprefix("t3."): value for name, value in state.items()}
        hp = config.multilingual()
        hp.text_tokens_dict_size = len(state["text_emb.weight"])
        model = t3.T3(hp)
        model.load_state_dict(state)
        model = model.to(request.get("device", "cpu")).eval()
        inputs = {name: self.torch.from_numpy(array)[None].to(model.device) for name, array in arrays.items()}
        voice = conditions.T3Cond(
            speaker_emb=inputs["speaker"],
            cond_prompt_speech_tokens=inputs["prompt"].long(),
            emotion_adv=request["emotion"] * self.torch.ones(1, 1, 1, device=model.device),
        )
        text, codes = inputs["text"].long(), inputs["codes"].long()
        lengths = [self.torch.tensor([ids.shape[1]], device=model.device) for ids in (text, codes)]
        with self.torch.inference_mode():
            output = model(
                t3_cond=voice,
                text_tokens=text,
                text_token_lens=lengths[0],
                speech_tokens=codes,
                speech_token_lens=lengths[1],
            )
        return {}, {"logits": output.speech_logits[0].float().cpu().numpy()}

    def _model(self, path: str, device: str) -> Any:
        if (path, device) not in self.models:
            model = import_module("chatterbox.models.s3gen").S3Gen()
            if Path(path).suffix == ".safetensors":
                state = import_module("safetensors.torch").load_file(path)
            else:
                state = self.torch.load(path, map_location="cpu", weights_only=True)
            # Some published files lack two tables of constants, which the model has computed already.
            load_result = model.load_state_dict(state, strict=False)
            known = set(getattr(model, "ignore_state_dict_missing", ()))
            if set(load_result.missing_keys) - known or load_result.unexpected_keys:
                raise ValueError(f"{path} is not a complete S3Gen: {load_result}"[:500])
            self.models[path, device] = model.to(device).eval()
        return self.models[path, device]

    def _reference(self, model: Any, request: dict[str, Any], arrays: dict[str, Any]) -> Any:
        if "reference" not in arrays:
            conditions = self.torch.load(request["conditions"], map_location="cpu", weights_only=True)["gen"]
            return {
                name: value.to(model.device) if self.torch.is_tensor(value) else value
                for name, value in conditions.items()
            }
        samples = arrays["reference"][: REFERENCE_SECONDS * SAMPLE_RATE]
        name = hashlib.sha256(samples.tobytes()).hexdigest()
        if name not in self.references:
            while len(self.references) >= MAX_CACHED_REFERENCES:
                self.references.pop(next(iter(self.references)))
            with self.torch.inference_mode():
                self.references[name] = model.embed_ref(samples, SAMPLE_RATE, device=model.device)
        return self.references[name]


def start(_arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The requests that are answered, and the packages whose versions are reported."""
    import_module("chatterbox.models.s3gen")  # now, so that a broken environment is noticed before the first request
    synthesizer = S3GenSynthesizer()
    handlers = {"sound": synthesizer.sound, "mel": synthesizer.mel, "logits": synthesizer.logits}
    return handlers, ["chatterbox-tts", "torch", "numpy", "transformers"]
