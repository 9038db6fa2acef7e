"""Clips of one recording put together by voice, from vectors that a voice encoder gives. Only clear cases are parted.

Knows no encoder and renames nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["cluster_speakers"]

SpeakerEmbeddings = NDArray[np.float32]
MAX_SPEAKERS = 8
KMEANS_ITERATIONS = 30
MIN_SILHOUETTE = 0.4
"""Mean silhouette, from -1 to 1, from which several voices are clearer than one. One speaker's clips stay below."""
MAX_CENTROID_COSINE = 0.88
"""Cosine of two voices' means from which they are one voice in two moods."""
MIN_CLUSTER_CLIPS = 3
MAX_SILHOUETTE_CLIPS = 600


def cluster_speakers(vectors: SpeakerEmbeddings) -> list[int]:
    """The number of the voice of each clip, the most frequent first; all 0 where there is clearly one, or few clips."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    best, chosen = MIN_SILHOUETTE, np.zeros(len(unit), np.int64)
    for count in range(2, min(MAX_SPEAKERS, len(unit) // MIN_CLUSTER_CLIPS) + 1):
        labels = _spherical_kmeans(unit, count)
        if (
            np.bincount(labels, minlength=count).min() < MIN_CLUSTER_CLIPS
            or _max_centroid_cosine(unit, labels) > MAX_CENTROID_COSINE
        ):
            continue
        clarity = _mean_silhouette(unit, labels)
        if clarity > best:
            best, chosen = clarity, labels
    order = {int(old): new for new, old in enumerate(np.argsort(-np.bincount(chosen), kind="stable"))}
    return [order[int(label)] for label in chosen]


def _spherical_kmeans(unit: SpeakerEmbeddings, count: int) -> NDArray[np.int64]:
    """Means on the sphere; the first centres are the clips that are furthest from those before."""
    centres = [unit[int(np.argmax(unit @ unit.mean(axis=0)))]]
    while len(centres) < count:
        nearest = np.max(unit @ np.array(centres).T, axis=1)
        centres.append(unit[int(np.argmin(nearest))])
    middle = np.array(centres)
    labels = np.zeros(len(unit), np.int64)
    for _ in range(KMEANS_ITERATIONS):
        fresh = np.argmax(unit @ middle.T, axis=1)
        if np.array_equal(fresh, labels):
            break
        labels = fresh
        sums = np.array(
            [unit[labels == own].sum(axis=0) if (labels == own).any() else middle[own] for own in range(count)]
        )
        middle = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
    return labels


def _max_centroid_cosine(unit: SpeakerEmbeddings, labels: NDArray[np.int64]) -> float:
    """Cosine of the two voices that are most alike."""
    means = np.array([unit[labels == own].mean(axis=0) for own in np.unique(labels)])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
    return float(np.max(means @ means.T - 2 * np.eye(len(means))))


def _mean_silhouette(unit: SpeakerEmbeddings, labels: NDArray[np.int64]) -> float:
    """How much nearer clips are to their own voice than to the next, on the average."""
    step = max(1, len(unit) // MAX_SILHOUETTE_CLIPS)
    some, own = unit[::step], labels[::step]
    away = 1.0 - some @ some.T
    scores = []
    for place in range(len(some)):
        same = own == own[place]
        if same.sum() < 2:
            continue
        inside = away[place][same].sum() / (same.sum() - 1)
        outside = min(away[place][own == other].mean() for other in np.unique(own) if other != own[place])
        scores.append((outside - inside) / max(inside, outside, 1e-9))
    return float(np.mean(scores)) if scores and len(np.unique(own)) > 1 else -1.0
