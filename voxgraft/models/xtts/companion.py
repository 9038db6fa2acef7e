"""The package coqui-tts as a companion: its scores for given codes, and its sound for given states.

Loaded by `companions/worker.py` in the environment of the package, so it imports nothing of voxgraft; the package is
imported by name.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


class XTTSReference:
    """Opened models by checkpoint: one base has one."""

    def __init__(self) -> None:
        self.models: dict[str, Any] = {}
        self.torch: Any = import_module("torch")

    def logits(self, request: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The scores from which each code is drawn. Text and codes without start and stop. [codes, rows]"""
        model, torch = self._model(request), self.torch
        text, codes = (torch.from_numpy(arrays[name]).long()[None] for name in ("text", "codes"))
        latents = torch.from_numpy(arrays["latents"])[None]
        lengths = [torch.tensor([text.shape[1]]), torch.tensor([codes.shape[1] * model.gpt.code_stride_len])]
        with torch.inference_mode():
            states = model.gpt(
                text,
                lengths[0],
                codes,
                lengths[1],
                cond_latents=latents,
                return_attentions=False,
                return_latent=True,
            )
            logits = model.gpt.mel_head(states)
        return {}, {"logits": logits[0].float().numpy(), "states": states[0].float().numpy()}

    def sound(self, request: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Samples at 24 kHz of states [codes, width] with the speaker vector of a voice."""
        model, torch = self._model(request), self.torch
        with torch.inference_mode():
            states = torch.from_numpy(arrays["states"])[None]
            samples = model.hifigan_decoder(states, g=torch.from_numpy(arrays["speaker"])[None, :, None])
        return {"sample_rate": 24_000}, {"samples": samples.reshape(-1).float().numpy()}

    def _model(self, request: dict[str, Any]) -> Any:
        checkpoint = request["checkpoint"]
        if checkpoint not in self.models:
            config = import_module("TTS.tts.configs.xtts_config").XttsConfig()
            config.load_json(str(Path(request["folder"]) / "config.json"))
            model = import_module("TTS.tts.models.xtts").Xtts(config)
            # Not its own `load_checkpoint`: that rewrites published files.
            model.init_models()
            options = {"map_location": "cpu", "weights_only": True}
            state = self._read(checkpoint, options)
            model.load_state_dict(state)
            model.eval()
            self.models = {checkpoint: model}
        return self.models[checkpoint]

    def _read(self, checkpoint: str, options: dict[str, Any]) -> Any:
        if checkpoint.endswith(".safetensors"):
            return import_module("safetensors.torch").load_file(checkpoint)
        configs = import_module("TTS.tts.configs.xtts_config")
        models = import_module("TTS.tts.models.xtts")
        shared = import_module("TTS.config.shared_configs")
        # A published file holds its settings as objects of these classes.
        known = [configs.XttsConfig, models.XttsArgs, models.XttsAudioConfig, shared.BaseDatasetConfig]
        with self.torch.serialization.safe_globals(known):
            tree = self.torch.load(checkpoint, **options)
        return tree.get("model", tree)


def start(_arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The requests that are answered, and the packages whose versions are reported."""
    import_module("TTS.tts.models.xtts")  # now, so that a broken environment is noticed before the first request
    reference = XTTSReference()
    return {"logits": reference.logits, "sound": reference.sound}, ["coqui-tts", "torch", "numpy", "transformers"]
