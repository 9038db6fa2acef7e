"""Human recordings of Debian packages: fetched by name, unpacked, and listed with texts, speakers, languages, licences.

The recordings are never committed. Only the licence of festvox-ru (BSD-like) allows shipping excerpts.
"""

from __future__ import annotations

import gzip
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["NO_TEXT", "PACKAGES", "PROMPTS", "SOURCES", "Recording", "asterisk", "festvox", "fetch", "fillets"]

NO_TEXT = "-"
# Debian 12, as they were measured; the licences are those of the packages' copyright files.
PACKAGES = {
    "festvox-ru": "0.5+dfsg-6",
    **{
        f"asterisk-core-sounds-{code}{kind}": "1.6.1-1"
        for code in ("en", "es", "fr", "it", "ru")
        for kind in ("", "-g722")
    },
    **{f"fillets-ng-data{code}": "1.0.1-1.1" for code in ("", "-cs", "-nl")},
    "tuxpaint-stamps-default": "2022.06.04-1",
    "ktuberling-data": "4:22.12.3-1",
    "klettres-data": "4:22.12.3-1",
    "qabcs-data": "1.0.2-6",
}
# Name, language, and the folder below usr/share/asterisk/sounds.
PROMPTS = (
    ("asterisk-en", "en", "en_US_f_Allison"),
    ("asterisk-fr", "fr", "fr_CA_f_June"),
    ("asterisk-es", "es", "es_MX_f_Allison"),
    ("asterisk-it", "it", "it_IT_m_Carlo"),
    ("asterisk-ru", "ru", "ru_RU_f_IvrvoiceRU"),
    ("prompt-es-co", "es", "es"),
    ("prompt-fr-armelle", "fr", "fr"),
    ("prompt-it-menardi", "it", "it_IT_f_Menardi"),
)


class Recording(NamedTuple):
    """An audio file of a package."""

    path: Path
    text: str
    speaker: str


_LUA_DIALOG = re.compile(r'dialogId\("([^"]+)".*?\)\s*dialogStr\("((?:[^"\\]|\\.)*)"\)', re.DOTALL)


def festvox(root: Path) -> Iterator[Recording]:
    """Audio, text and speaker of festvox-ru. A plus marks stress."""
    folder = root / "usr/share/festival/voices/russian/msu_ru_nsh_clunits"
    for line in (folder / "etc/txt.done.data").read_text(encoding="utf-8").splitlines():
        name, _, text = line.strip("() \n").partition(" ")
        yield Recording(folder / "wav" / f"{name}.wav", text.strip(' "').replace("+", ""), "nsh")


def asterisk(root: Path, name: str, below: str) -> Iterator[Recording]:
    """Prompts with their texts, if the package has them. Single letters, digits and silence are left out."""
    listed = root / f"usr/share/doc/asterisk-core-sounds-{name[-2:]}/core-sounds-{name[-2:]}.txt.gz"
    texts: dict[str, str] = {}
    if name.startswith("asterisk-"):
        for line in gzip.decompress(listed.read_bytes()).decode("utf-8-sig", "replace").splitlines():
            stem, colon, text = line.partition(":")
            # Notes in brackets describe a sound; they are not spoken.
            if colon and not line.startswith(";") and not re.search(r"[\[\](<>]", text):
                texts[stem.strip()] = " ".join(text.split())
    folder = root / "usr/share/asterisk/sounds" / below
    for path in sorted(folder.glob("**/*")):
        if path.suffix not in {".g722", ".gsm", ".wav"} or path.parent.name in {"silence", "letters", "phonetic"}:
            continue
        stem = str(path.relative_to(folder).with_suffix(""))
        if not texts or stem in texts:
            yield Recording(path, texts.get(stem, NO_TEXT), name)


def fillets(root: Path, language: str) -> Iterator[Recording]:
    """Dialogues of a game by its two main actors: a name with -m- is the small fish, one with -v- the large one."""
    game = root / "usr/share/games/fillets-ng"
    for script in sorted(game.glob(f"script/*/dialogs_{language}.lua")):
        for name, text in _LUA_DIALOG.findall(script.read_text(encoding="utf-8")):
            path = game / "sound" / script.parent.name / language / f"{name}.ogg"
            actor = re.search(r"-([mv])-", name)
            if path.is_file() and actor:
                yield Recording(path, text.replace('\\"', '"'), f"{language}-{actor[1]}")


def tuxpaint(root: Path) -> Iterator[Recording]:
    """Captions of pictures, read by volunteers; a language counts as one speaker. Catalan captions are longer than
    the recordings."""
    for path in sorted((root / "usr/share/tuxpaint/stamps").rglob("*_desc_*.*")):
        named = re.fullmatch(r"(.+)_desc_([a-z]{2})\.(?:ogg|wav)", path.name)
        if named is None:
            continue
        captions = path.with_name(f"{named[1]}.txt")
        lines = captions.read_text(encoding="utf-8", errors="replace").splitlines() if captions.is_file() else []
        text = next((line.partition("=")[2] for line in lines if line.startswith(f"{named[2]}.utf8=")), "")
        yield Recording(path, text.strip() if text.strip() and named[2] != "ca" else NO_TEXT, named[2])


def words_by_language(folder: Path, pattern: str) -> Iterator[Recording]:
    """Single words, letters or syllables without texts, in a folder for each language; one counts as one speaker."""
    for path in sorted(folder.glob(f"*/{pattern}")):
        if path.suffix in {".ogg", ".wav"}:
            yield Recording(path, NO_TEXT, path.relative_to(folder).parts[0])


class Source(NamedTuple):
    """One set of recordings."""

    name: str
    language: str
    """Empty if the speaker's name is the language."""
    licence: str
    is_unseen: bool
    """All its speakers are held out."""
    is_extra: bool = False
    """Only the codec learns from it: many speakers with little speech each, some of it without a text."""

    def recordings(self, root: Path) -> Iterator[Recording]:
        """Its files in the folder with the unpacked packages."""
        if self.name == "festvox-ru":
            return festvox(root)
        if self.name.startswith("fillets-"):
            return fillets(root, self.language)
        if self.name == "tuxpaint":
            return tuxpaint(root)
        if self.name in WORDS:
            return words_by_language(root / WORDS[self.name][0], WORDS[self.name][1])
        return asterisk(root, self.name, next(below for name, _, below in PROMPTS if name == self.name))


# Folder and pattern of packages with single words.
WORDS = {
    "ktuberling": ("usr/share/ktuberling/sounds", "*.*"),
    "klettres": ("usr/share/klettres", "*/*.ogg"),
    "qabcs": ("usr/share/qabcs/abcs", "sounds/words/*.ogg"),
}
# Asterisk's English and Spanish prompts are by one speaker (Allison Smith), so both are held out.
SOURCES = (
    Source("festvox-ru", "ru", "BSD-like (N. V. Shmyrev 2005)", is_unseen=False),
    Source("fillets-cs", "cs", "GPL-2", is_unseen=False),
    Source("fillets-nl", "nl", "GPL-2", is_unseen=False),
    Source("asterisk-it", "it", "CC-BY-SA-3.0 (C. Flora)", is_unseen=False),
    Source("asterisk-ru", "ru", "CC-BY-3.0 (M. Topal)", is_unseen=True),
    Source("asterisk-en", "en", "CC-BY-SA-3.0 (A. Smith)", is_unseen=True),
    Source("asterisk-fr", "fr", "CC-BY-SA-3.0 (J. Wallack)", is_unseen=True),
    Source("asterisk-es", "es", "CC-BY-SA-3.0 (A. Smith)", is_unseen=True),
    Source("tuxpaint", "", "GPL-2+", is_unseen=False, is_extra=True),
    Source("ktuberling", "", "GPL-2+", is_unseen=False, is_extra=True),
    Source("klettres", "", "GPL-2+", is_unseen=False, is_extra=True),
    Source("qabcs", "", "GPL-3+ and others", is_unseen=False, is_extra=True),
)


def fetch(downloads: Path, names: Sequence[str] = tuple(PACKAGES)) -> Path:
    """Download and unpack missing packages; returns the folder with their files."""
    downloads.mkdir(parents=True, exist_ok=True)
    root = downloads / "root"
    for name in names:
        done = root / f".{name}"
        if done.exists():
            continue
        if not list(downloads.glob(f"{name}_*.deb")):
            subprocess.run(["apt-get", "download", f"{name}={PACKAGES[name]}"], cwd=downloads, check=True)  # noqa: S603, S607
        (package,) = downloads.glob(f"{name}_*.deb")
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)  # noqa: S603, S607
        done.touch()
    return root
