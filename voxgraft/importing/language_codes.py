"""Codes of languages in names of files: which words are codes, and which codes mean one language. Knows no more."""

from __future__ import annotations

__all__ = ["canonical_language_code"]

# Two letters, then the three letters of the same language (ISO 639-1 and 639-2, both forms).
_ISO_639_1_CODES = """aa aar|ab abk|ae ave|af afr|ak aka|am amh|an arg|ar ara|as asm|av ava|ay aym|az aze|ba bak|be bel|bg bul
bi bis|bm bam|bn ben|bo bod tib|br bre|bs bos|ca cat|ce che|ch cha|co cos|cr cre|cs ces cze|cu chu|cv chv|cy cym wel
da dan|de deu ger|dv div|dz dzo|ee ewe|el ell gre|en eng|eo epo|es spa|et est|eu eus baq|fa fas per|ff ful|fi fin|fj fij
fo fao|fr fra fre|fy fry|ga gle|gd gla|gl glg|gn grn|gu guj|gv glv|ha hau|he heb iw|hi hin|ho hmo|hr hrv|ht hat
hu hun|hy hye arm|hz her|ia ina|id ind in|ie ile|ig ibo|ii iii|ik ipk|io ido|is isl ice|it ita|iu iku|ja jpn|jv jav
ka kat geo|kg kon|ki kik|kj kua|kk kaz|kl kal|km khm|kn kan|ko kor|kr kau|ks kas|ku kur|kv kom|kw cor|ky kir|la lat
lb ltz|lg lug|li lim|ln lin|lo lao|lt lit|lu lub|lv lav|mg mlg|mh mah|mi mri mao|mk mkd mac|ml mal|mn mon|mr mar
ms msa may|mt mlt|my mya bur|na nau|nb nob|nd nde|ne nep|ng ndo|nl nld dut|nn nno|no nor|nr nbl|nv nav|ny nya|oc oci
oj oji|om orm|or ori|os oss|pa pan|pi pli|pl pol|ps pus|pt por|qu que|rm roh|rn run|ro ron rum|ru rus|rw kin|sa san
sc srd|sd snd|se sme|sg sag|si sin|sk slk slo|sl slv|sm smo|sn sna|so som|sq sqi alb|sr srp|ss ssw|st sot|su sun
sv swe|sw swa|ta tam|te tel|tg tgk|th tha|ti tir|tk tuk|tl tgl|tn tsn|to ton|tr tur|ts tso|tt tat|tw twi|ty tah
ug uig|uk ukr|ur urd|uz uzb|ve ven|vi vie|vo vol|wa wln|wo wol|xh xho|yi yid|yo yor|za zha|zh zho chi cmn|zu zul"""
_ISO_639_3_CODES = "ast byn ceb fil gez gsw haw hmn ilo kab kam kmr ckb luo mai mni nds nso pap sat sid tig umb wal yue"
_CANONICAL_CODES = {
    code: codes.split()[0] for codes in _ISO_639_1_CODES.replace("\n", "|").split("|") for code in codes.split()
}
_CANONICAL_CODES |= {code: code for code in _ISO_639_3_CODES.split()}


def canonical_language_code(word: str) -> str | None:
    """The shortest code of the language that a word is a code of, without its region; None if it is none."""
    return _CANONICAL_CODES.get(word.lower().replace("_", "-").partition("-")[0])
