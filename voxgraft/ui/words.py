"""Words that the web interface explains, in plain language and beside the words of other trainers."""

from __future__ import annotations

GLOSSARY = {
    "base": "A published model as its makers give it out, for example Chatterbox. It is only ever read. "
    "Elsewhere: pretrained model, checkpoint.",
    "graft": "Everything that is added to a base for one language: new letters and pieces of text, their rows, and a "
    "small adapter. A small folder to share. Elsewhere: extended vocabulary plus LoRA.",
    "row": "One token's line of numbers in the table that turns text into what the model works with. New letters get "
    "new rows. Elsewhere: embedding; making room for them is called extending the embeddings.",
    "frozen": "The base's rows are not in the optimizer at all, so nothing can move them. Elsewhere: freeze, freeze "
    "until index; there a check box, here a fact.",
    "gated": "The usual way to train: the adapter acts only while the new language is spoken, so that the old ones "
    "stay exactly as they were, bit for bit.",
    "merged": "One ordinary checkpoint for other programs. The training is folded into the base, so the old languages "
    "can change; how much is measured while it trains, and bounded.",
    "retention": "How well an old language is still spoken: its loss now against its loss before training. +0 % is as "
    "before.",
    "CER": "Character error rate: somebody (a recogniser) listens and writes down what was said; this share of "
    "the letters is wrong. 0 % is perfect, lower is better.",
    "speech loss": "How surprised the model is by the next bit of real speech; lower is better. Elsewhere: mel loss, "
    "code loss.",
    "text loss": "The same for the next bit of text.",
    "text use": "How much worse the speech gets with another sentence's text. Near zero the model is not reading, "
    "however the loss falls.",
    "held out": "Recordings that are never learnt from, so that what is measured on them can be believed. Elsewhere: "
    "validation and test data.",
    "tokenizer": "Cuts text into the pieces that have rows. The old one stays as it is; new pieces are put after it.",
    "step": "One small improvement, made from one batch. Elsewhere: iteration.",
    "adapter": "A few added weights on the model's body that act for the new language. Elsewhere: LoRA.",
}


def glossary_markdown() -> str:
    """All words as Markdown."""
    return "\n".join(f"- **{word}**: {meaning}" for word, meaning in GLOSSARY.items())
