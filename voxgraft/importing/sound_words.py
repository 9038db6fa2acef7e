"""Words by which captions describe sounds, by language. Only these leave round brackets inside a sentence."""

from __future__ import annotations

__all__ = ["NARRATOR_LABELS", "NON_SPEAKER_LABELS", "sound_words_for"]

_SOUND_WORDS_BY_LANGUAGE: dict[str, tuple[str, ...]] = {
    "en": tuple(
        "music musical song singing sings applause applauds laughter laughs laughing chuckles giggles sighs gasps "
        "coughs coughing cough crying cries sobbing screams screaming shouting cheering cheers crowd whistles "
        "barking bell bells ringing rings beep beeping buzzing siren sirens thunder gunshot gunshots explosion "
        "knocks door footsteps silence inaudible unintelligible indistinct chatter background foreign groans grunts "
        "whispers whispering static noise horn honks engine phone clears".split()
    ),
    "am": tuple(
        "ሙዚቃ ዘፈን መዝሙር ጭብጨባ ሳቅ ሳቅታ ይስቃል ትስቃለች እየሳቀ እየሳቀች ለቅሶ ልቅሶ ያለቅሳል ታለቅሳለች ሳል ይስላል ጩኸት እልልታ ፉጨት ድምፅ ድምጽ "
        "ደወል ስልክ ተኩስ ፍንዳታ ነጎድጓድ ጸጥታ ዝምታ የማይሰማ ማስታወቂያ".split()
    ),
    "ti": tuple("ሙዚቃ ደርፊ መዝሙር ጨብጨባ ጣቕዒት ሰሓቕ ብኽያት ሳዓል ጫውጫውታ ድምጺ ደወል ስቕታ".split()),
    "fr": tuple(
        "musique chanson chant applaudissements rires rire rit soupir soupire toux tousse pleurs pleure cris crie "
        "sonnerie sonne sirène tonnerre silence inaudible brouhaha porte bruit".split()
    ),
    "es": tuple("música canción aplausos risas risa ríe suspira tos tose llanto llora gritos grita silencio".split()),
    "de": tuple("musik lied applaus gelächter lachen lacht seufzt husten hustet weint schreit stille klingelt".split()),
    "sw": tuple("muziki wimbo makofi kicheko vicheko anacheka kilio analia kelele kimya".split()),
    "om": tuple("muuziqaa sirba harka kolfa boo'icha sagalee".split()),
    "ar": tuple("موسيقى أغنية تصفيق ضحك يضحك تضحك بكاء يبكي صراخ صمت".split()),
}
NARRATOR_LABELS: dict[str, tuple[str, ...]] = {
    "en": ("narrator", "interviewer", "announcer", "reporter", "host", "man", "woman", "voice-over"),
    "am": ("ተራኪ", "አቅራቢ", "ጋዜጠኛ", "ጠያቂ", "መላሽ", "ሴት", "ወንድ", "ድምፅ"),
    "ti": ("ተራኺ", "ጋዜጠኛ", "ሓታቲ"),
    "fr": ("narrateur", "journaliste", "homme", "femme", "voix off"),
}
"""Names of parts that stand before a colon, besides capitals and names that come again and again."""


NON_SPEAKER_LABELS = frozenset(
    ("note", "warning", "example", "question", "answer", "ማስጠንቀቂያ", "ማሳሰቢያ", "ማስታወሻ", "ለምሳሌ", "ጥያቄ", "መልስ")
)
"""Words that often stand before a colon and name nobody."""


def sound_words_for(language: str) -> frozenset[str]:
    """Words of the language and of English, which captions of every language use."""
    return frozenset(
        (*_SOUND_WORDS_BY_LANGUAGE["en"], *_SOUND_WORDS_BY_LANGUAGE.get(language.lower().partition("-")[0], ()))
    )
