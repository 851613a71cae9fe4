"""Which blocks each pipeline stage has, chunk by chunk."""

from __future__ import annotations

from gpuledger.config.run import Run
from gpuledger.errors import InputError
from gpuledger.program.model import Stage


def layers_of_stages(num_layers: int, pp: int) -> tuple[int, ...]:
    """As even as it goes. [X17]

    Where only num_layers + 2 divides, embedding and head count as a block each; otherwise the blocks
    that are left over go to the stages after the first.
    """
    each, rest = divmod(num_layers, pp)
    if rest and pp > 2 and (num_layers + 2) % pp == 0:
        each = (num_layers + 2) // pp
        return (each - 1, *(each,) * (pp - 2), each - 1)
    return tuple(each + (1 <= stage <= rest) for stage in range(pp))


def model_parts(run: Run) -> list[Stage]:
    """The model cut into pp x chunks parts, in the order of the forward pass.

    Raises InputError where the blocks do not divide into model chunks.
    """
    parallel, num_layers = run.parallel, run.model.num_layers
    name = parallel.pipeline_schedule
    chunks = 1 if name == "dualpipe" else parallel.chunks
    counts = chunk_layers(run)
    if counts is None:
        given = parallel.stage_layers or layers_of_stages(num_layers, parallel.pp)
        if sum(given) != num_layers:
            raise InputError(
                f"stage_layers = {list(given)} adds up to {sum(given)} blocks, but the model "
                f"has {num_layers}",
                "name the blocks of each stage",
            )
        for layers in given:
            if layers % chunks:
                raise InputError(
                    f"{layers} blocks of a stage cannot be cut into {chunks} model chunks",
                    "use a vpp that divides the blocks of each stage",
                )
        counts = [
            given[rank_of_part(name, i, parallel.pp)] // chunks for i in range(parallel.pp * chunks)
        ]
    parts, first = [], 0
    for i, layers in enumerate(counts):
        parts.append(Stage(first, layers, embedding=i == 0, head=i == len(counts) - 1))
        first += layers
    return parts


def chunk_layers(run: Run) -> list[int] | None:
    """Megatron's --account-for-embedding/loss-in-pipeline-split: each counts as a block of its chunk."""
    options, parallel = run.parallel.megatron, run.parallel
    embedding, loss = options.account_for_embedding, options.account_for_loss
    if not (embedding or loss):
        return None
    parts = parallel.pp * parallel.chunks
    slots, rest = divmod(run.model.num_layers + embedding + loss, parts)
    if rest:
        raise InputError(
            f"{run.model.num_layers} blocks with embedding and loss counted as blocks do not "
            f"divide into {parts} parts",
            "change num_layers, pp or vpp",
        )
    counts = [slots] * parts
    counts[0] -= embedding
    counts[-1] -= loss
    return counts


def rank_of_part(schedule: str, part: int, pp: int) -> int:
    """The stage that holds a part of the model: in a V the second half runs back."""
    if schedule == "zb-v" and part >= pp:
        return 2 * pp - 1 - part
    return part % pp


def chunks_of_stage(run: Run, stage: int) -> list[Stage]:
    """The model chunks of one stage, by number of the chunk."""
    return chunks_of_stages(run)[stage]


def chunks_of_stages(run: Run) -> list[list[Stage]]:
    """The same for every stage."""
    parts, pp, name = model_parts(run), run.parallel.pp, run.parallel.pipeline_schedule
    if name == "dualpipe":
        return [[parts[stage], parts[pp - 1 - stage]] for stage in range(pp)]
    chunks: list[list[Stage]] = [[] for _ in range(pp)]
    for i, part in enumerate(parts):
        chunks[rank_of_part(name, i, pp)].append(part)
    return chunks
