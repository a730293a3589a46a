"""A study -> its report: which sections there are, and in which order."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from bertvision.errors import UserError
from bertvision.report.analysis import analysis_sections
from bertvision.report.committee import committee_section, greedy_section
from bertvision.report.cost import cost_section
from bertvision.report.document import Album, Badge, Block, Code, Facts, Fold, Note, Report, Section
from bertvision.report.facts import data_line, fact_lines
from bertvision.report.gains import gain_blocks, gain_section
from bertvision.report.joint import apart, joint_sections, outcomes_of
from bertvision.report.outcomes import outcome_sentences
from bertvision.report.reading import Study
from bertvision.report.scores import published_section, score_blocks
from bertvision.report.sentences import summary_sentences
from bertvision.report.summary import Metric, metrics_of

SYNTHETIC = "Synthetic data: the questions were written by a program. Scores say nothing about real text."
INCOMPLETE = "This report is not complete."


def compose(study: Study, metrics: Sequence[Metric] = ()) -> Report:
    """The report of a study. metrics: what to show; by default the scores there are."""
    album = Album()
    lost: list[str] = []  # files that turn out not to hold what belongs there
    if study.variants:
        sentences, sections = outcome_sentences(outcomes_of(study)), _joint(study, album, lost)
    else:
        shown = [Metric(*metric) for metric in metrics] or metrics_of(study.rows)
        sentences, sections = summary_sentences(study.rows, shown, study.recipe), _single(study, shown, album, lost)
    return Report(study.title, _badges(study, lost), sentences, [*sections, *_reproduce(study), *_provenance(study)])


def _single(study: Study, metrics: Sequence[Metric], album: Album, lost: list[str]) -> list[Section]:
    scores = score_blocks(study, metrics, album)
    return [
        *([Section("Scores", scores)] if scores else []),
        *gain_section(study, metrics, album),
        *cost_section(study, metrics, album),
        *published_section(study, metrics),
        *fitting(lambda: greedy_section(study, metrics), "greedy.json", lost),
        *fitting(lambda: committee_section(study, metrics), "ensemble.json", lost),
        *fitting(lambda: analysis_sections(study, album), "analysis.json", lost),
    ]


def fitting(build: Callable[[], list[Section]], name: str, lost: list[str]) -> list[Section]:
    """The sections made of a file; none, and a sentence in `lost`, where it does not hold what belongs there."""
    try:
        return build()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, UserError) as error:
        reason = " ".join(str(error).split())[:200]
        lost.append(f"{name} is left out: it is not as this program writes it ({type(error).__name__}: {reason}).")
        return []


def _joint(study: Study, album: Album, lost: list[str]) -> list[Section]:
    """Everybody side by side, then each by itself."""
    sections = joint_sections(study, album)
    for name, one in study.variants.items():
        metrics, own = metrics_of(one.rows), album.volume(name)
        blocks: list[Block] = score_blocks(one, metrics, own)
        if gains := gain_blocks(one.rows, metrics, own):
            blocks.append(Fold("What a head gains, kept apart", gains))
        for more in [*cost_section(one, metrics, own), *_looks(one, metrics, own, name, lost)]:
            blocks.append(Fold(more.title, more.blocks))
        sections.append(Section(name, blocks or [Note("No scores yet.")]))
    return [*sections, *published_section(replace(study, rows=(), paper=apart(study)), metrics_of(study.rows))]


def _looks(study: Study, metrics: Sequence[Metric], album: Album, name: str, lost: list[str]) -> list[Section]:
    """The ensembles and the analysis of one of several, where it has them."""
    found = fitting(lambda: greedy_section(study, metrics), f"{name}: greedy.json", lost)
    found += fitting(lambda: committee_section(study, metrics), f"{name}: ensemble.json", lost)
    if study.analysis:
        found += fitting(lambda: analysis_sections(study, album), f"{name}: analysis.json", lost)
    return found


def _badges(study: Study, lost: Sequence[str]) -> list[Badge]:
    badges = [Badge(SYNTHETIC, data_line(study.facts, study.recipe))] if study.synthetic() else []
    missing = [*study.missing, *lost]
    return [*badges, *([Badge(INCOMPLETE, lines=missing)] if missing else [])]


def _reproduce(study: Study) -> list[Section]:
    blocks = _commands(study)
    for name, one in study.variants.items():
        if one.recipe_text:  # a run of its own
            blocks.append(Fold(name, _commands(one)))
    return [Section("How to run it again", blocks)] if blocks else []


def _commands(study: Study) -> list[Block]:
    command = str(study.facts.get("command") or "")
    blocks: list[Block] = [Code(command)] if command else []
    if study.recipe_text:
        blocks += [Note("The recipe, recipe.toml:"), Code(study.recipe_text)]
    return blocks


def _provenance(study: Study) -> list[Section]:
    lines = fact_lines(study.facts)
    seeds = study.recipe.get("seeds")
    if seeds and lines:
        lines.insert(0, ("Seeds", ", ".join(map(str, seeds))))
    blocks: list[Block] = [Facts(lines)] if lines else []
    for name, one in study.variants.items():
        if own := fact_lines(one.facts):
            blocks.append(Fold(name, [Facts(own)]))
    return [Section("Data, versions, machine", blocks)] if blocks else []
