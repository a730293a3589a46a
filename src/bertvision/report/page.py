"""The report of a study: report.html, report.md and figures/, from the files of its run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bertvision.report import TEXTS
from bertvision.report.analysis import analysis_sections, probe_blocks
from bertvision.report.grid import paper_grid
from bertvision.report.reading import Study, read_study
from bertvision.report.render import Album, Badge, Block, Report, Section, notes, write_files
from bertvision.report.rows import main_rows, metrics_of
from bertvision.report.sections import (
    cost_blocks,
    data_line,
    difference_blocks,
    ensemble_blocks,
    fact_blocks,
    greedy_blocks,
    loss_blocks,
    reproduce_blocks,
    score_blocks,
)
from bertvision.report.sentences import summary_sentences


def write_report(directory: Path) -> Path:
    """Reads a run, finished or not, and writes its report there; the path of report.html."""
    return write_pages(read_study(directory), directory)


def write_pages(study: Study, directory: Path) -> Path:
    """Writes the report of a study into a directory; the path of report.html."""
    return write_files(compose(study), directory)


def compose(study: Study) -> Report:
    """The report of a study."""
    album, left_out = Album(), list[str]()  # left_out: sentences on files that do not hold what belongs there
    if study.variants:
        from bertvision.report.variants import apart, joint_sections, outcome_sentences, outcomes_of

        outcomes = outcomes_of(study)
        sentences, sections = outcome_sentences(outcomes), joint_sections(study, outcomes, album)
        for name, variant in study.variants.items():
            main, *more = _study_sections(variant, Album(name, album.names), left_out, name) or [
                Section("", notes("No scores yet."))
            ]
            folds = [Block("fold", section.blocks, section.title) for section in more]
            sections.append(Section(name, [*main.blocks, *folds]))
        unmatched = paper_grid(metrics_of(study.all_rows), (), apart(study))
    else:
        sentences, sections = summary_sentences(study.rows, study.recipe), _study_sections(study, album, left_out)
        unmatched = paper_grid(metrics_of(study.rows), study.rows, study.paper)
    published = "Published results without a counterpart here"
    sections += [Section(published, [Block("table", unmatched, published)])] if unmatched else []
    reproduction, facts = _with_variants(study, reproduce_blocks), _with_variants(study, fact_blocks)
    sections += _sections({"Reproduce": reproduction, "Data, versions, machine": facts})
    return Report(study.title, _badges(study, left_out), sentences, sections)


def _study_sections(study: Study, album: Album, left_out: list[str], variant: str = "") -> list[Section]:
    """The sections of one study, the scores first. left_out: takes a sentence if the analysis cannot be shown."""
    if not (scores := score_blocks(study, album)):
        return []
    blocks = {
        "Scores": scores,
        "Differences to the backbone": difference_blocks(study, album),
        "Costs": cost_blocks(main_rows(study.rows), study, album),
        "Losses": loss_blocks(study, album),
        "Which layer knows what": probe_blocks(study, album),
        "The greedy ensemble": greedy_blocks(study),
        "The ensemble in ensemble.json": ensemble_blocks(study),
    }
    sections = _sections(blocks)
    if not study.contents.analysis:
        return [*sections, *([] if variant else [Section("Analysis", notes(TEXTS["no_analysis"]))])]
    try:
        return [*sections, *analysis_sections(study.contents.analysis, album, study.paper)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        file = f"{variant}: analysis.json" if variant else "analysis.json"
        left_out.append(f"{file} is left out: it is not as this program writes it ({reason}).")
        return sections


def _sections(blocks: dict[str, list[Block]]) -> list[Section]:
    return [Section(title, content) for title, content in blocks.items() if content]


def _with_variants(study: Study, build: Callable[[Study], list[Block]]) -> list[Block]:
    """The blocks of a study, then those of its variants in folds."""
    folds = {name: build(variant) for name, variant in study.variants.items()}
    return [*build(study), *(Block("fold", blocks, name) for name, blocks in folds.items() if blocks)]


def _badges(study: Study, left_out: Sequence[str]) -> list[Badge]:
    badges = [Badge(TEXTS["synthetic"], data_line(study))] if study.synthetic() else []
    missing = [*study.missing, *left_out]
    return [*badges, *([Badge(TEXTS["incomplete"], lines=missing)] if missing else [])]
