"""The level buffer in plain Python, written from its rules, with or without a mistake; and random operations on it."""

import numpy as np


class Twin:
    """Places are dicts of level, score, best and age. A level is any number."""

    def __init__(self, capacity, prioritization, temperature, staleness, mistake=""):
        self.capacity, self.prioritization, self.mistake = capacity, prioritization, mistake
        self.temperature, self.staleness = float(temperature), float(staleness)
        self.places = []

    def ranks(self):
        order = sorted(range(len(self.places)), key=lambda i: (-self.places[i]["score"], i))
        return (1 + np.argsort(order)).tolist()

    def chances(self):
        if self.prioritization == "rank":
            weights = np.array([1 / rank for rank in self.ranks()])
        else:
            weights = np.array([max(place["score"], 0.0) for place in self.places])
            weights = weights / weights.max() if weights.max() > 0 else weights + 1
        weights = weights ** (1 / self.temperature)
        by_score = weights / weights.sum()
        ages = np.array([float(place["age"]) for place in self.places])
        by_age = ages / ages.sum() if ages.sum() > 0 else by_score
        return (1 - self.staleness) * by_score + self.staleness * by_age

    def older(self, n):
        for place in self.places:
            place["age"] += n

    def draw(self, places):
        for i in places:
            self.older(1)
            if self.mistake != "draws keep ages":
                self.places[i]["age"] = 0

    def update(self, places, scores, bests):
        for i, score, best in zip(places, scores, bests, strict=True):
            if np.isfinite(score):
                self.rescore(self.places[i], score, best)

    def rescore(self, place, score, best):
        place["score"] = score
        place["best"] = best if self.mistake == "last best" else max(place["best"], best)

    def insert(self, levels, scores, bests):
        count = sum(np.isfinite(scores))
        if self.mistake != "ages at the end":
            self.older(count)
        before = set()
        for level, score, best in zip(levels, scores, bests, strict=True):
            if not np.isfinite(score) or level in before:
                continue
            if self.mistake != "duplicates in a batch":
                before.add(level)
            same = [place for place in self.places if place["level"] == level]
            if same and self.mistake != "duplicates":
                self.rescore(same[0], score, best)
                continue
            new = {"level": level, "score": score, "best": best, "age": 0}
            if self.mistake == "best from 0":
                new["best"] = max(best, 0.0)
            if len(self.places) < self.capacity:
                self.places.append(new)
                continue
            ranks, chances = self.ranks(), self.chances()
            least = min(range(self.capacity), key=lambda i: (chances[i], -ranks[i]))
            if self.mistake == "first of equals":
                least = int(np.argmin(chances))
            if self.mistake == "worst score":
                least = ranks.index(self.capacity)
            old = self.places[least]
            if score > old["score"] or (score == old["score"] and self.mistake != "above only"):
                if self.mistake == "evicted age":  # minimax
                    new["age"] = old["age"]
                self.places[least] = new
        if self.mistake == "ages at the end":
            self.older(count)

    def numbers(self):
        """By name, of the places that hold levels."""
        names = ("level", "score", "best", "age")
        return {name: np.array([place[name] for place in self.places]) for name in names} | {"rank": self.ranks()}


MISTAKES = (
    "evicted age", "last best", "best from 0", "duplicates", "duplicates in a batch", "above only", "worst score",
    "first of equals", "ages at the end", "draws keep ages",
)  # fmt: skip


def operations(seed, count, n, levels):
    """Random ones, (name, numbers): half of the scores are among few, so that there are ties; one in eight is NaN."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        name = ("insert", "insert", "draw", "update")[random.integers(4)]
        few = random.integers(-2, 3, n) / 2
        score = np.where(random.random(n) < 0.5, few, random.normal(size=n))
        score = np.where(random.random(n) < 1 / 8, random.choice([np.nan, np.inf], n), score).astype(np.float32)
        best = (score + random.normal(size=n) - 2).astype(np.float32)
        yield name, random.integers(0, levels, n), score, best, int(random.integers(2**31))
