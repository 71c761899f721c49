"""Plans of modules of torch: placements by name, in the words of torch."""

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import partita as pt
import partita.torch as ptt
from partita import cli
from torch_frontend.torch_models import (
    MLP,
    Tied,
    Transformer,
    next_token_loss,
    tokens,
)

DATA, MODEL = "data=2,model=2", pt.Megatron("model", vocabulary=False)


def planned(*tactics, module=None, mesh=DATA, **options):
    given = tokens()
    module = Transformer() if module is None else module
    known = {"loss": next_token_loss, "targets": given, "optimizer": "adamw", "tactics": tactics}
    return ptt.plan(module, given, mesh=mesh, hardware="h100", **known | options)


def test_the_batch_is_split_and_parameters_are_not_under_data_parallelism():
    plan = planned(pt.DataParallel("data"))
    assert plan.input_placements == {
        "tokens": (Shard(0), Replicate()),
        "targets": (Shard(0), Replicate()),
    }
    assert set(plan.placements.values()) == {(Replicate(), Replicate())}
    assert plan.output_placements == {"loss": (Replicate(), Replicate())}
    assert {c.kind for c in plan.collectives} == {"all_reduce"}


def test_megatron_splits_rows_then_columns():
    plan = planned(pt.DataParallel("data"), MODEL)
    own = {name.removeprefix("layers.0."): p for name, p in plan.placements.items()}
    assert own["q_proj.weight"] == own["mlp.up.weight"] == (Replicate(), Shard(0))
    assert own["o_proj.weight"] == own["mlp.down.weight"] == (Replicate(), Shard(1))
    assert own["mlp.up.bias"] == (Replicate(), Shard(0))
    assert own["mlp.down.bias"] == own["norm1.weight"] == (Replicate(), Replicate())


def test_optimizer_state_is_split_as_its_parameter_and_named_after_it():
    plan = planned(pt.FullyShardedDataParallel("data"), mesh="data=2")
    state = plan.optimizer_placements["layers.1.mlp.up.weight"]
    assert state == dict.fromkeys(("exp_avg", "exp_avg_sq"), (Shard(0),))
    assert plan.placements["layers.1.mlp.up.weight"] == (Shard(0),)
    assert "optimizer.exp_avg.layers.1.mlp.up.weight" in plan.plan.program.argument_names


def test_patterns_are_names_of_torch():
    up = pt.ManualPartition({"layers.*.mlp.up.weight": 0}, axis="model")
    plan = planned(up)
    split = {name for name, p in plan.placements.items() if p != (Replicate(), Replicate())}
    assert split == {
        f"layers.{n}.mlp.{name}" for n in (0, 1) for name in ("up.weight", "up.bias", "down.weight")
    }


def test_activations_are_placed_at_the_boundaries_of_modules():
    plan = planned(pt.DataParallel("data"), MODEL)
    whole, split = (Shard(0), Replicate()), (Shard(0), Shard(2))
    at = plan.module_placements
    assert at["layers.1.mlp.up"].inputs == (whole,)
    assert at["layers.1.mlp.up"].outputs == (split,)
    assert at["layers.1.mlp.down"].inputs == (split,)
    assert at["layers.0"].outputs == (whole,)


def test_what_torch_has_a_style_for_gets_it():
    module = Transformer()
    plan = planned(
        pt.DataParallel("data"), pt.SequenceParallel("model", vocabulary=False), module=module
    )
    styles = plan.styles(module, "model")
    own = {path: type(style).__name__ for path, style in styles.items() if "layers.0" in path}
    assert own == {
        "layers.0.norm1": "SequenceParallel",
        "layers.0.norm2": "SequenceParallel",
        "layers.0.q_proj": "ColwiseParallel",
        "layers.0.k_proj": "ColwiseParallel",
        "layers.0.v_proj": "ColwiseParallel",
        "layers.0.o_proj": "RowwiseParallel",
        "layers.0.mlp.up": "ColwiseParallel",
        "layers.0.mlp.down": "RowwiseParallel",
    }
    assert styles["layers.0.q_proj"].input_layouts == (Shard(1),)
    assert styles["layers.0.o_proj"].output_layouts == (Shard(1),)


def test_a_saved_plan_is_taken_up_without_a_search(tmp_path):
    given, file = tokens(), tmp_path / "plan.json"
    plan = planned(pt.DataParallel("data"), MODEL)
    plan.save(file)
    options = {"loss": next_token_loss, "targets": given, "optimizer": "adamw"}
    again = ptt.load(file, Transformer(), given, **options)
    assert again.placements == plan.placements
    with pytest.raises(pt.FileError):
        ptt.load(file, MLP(), torch.zeros(8, 32))


def test_files_of_torch_export_are_read(tmp_path):
    file = tmp_path / "mlp.pt2"
    torch.export.save(torch.export.export(MLP(), (torch.zeros(8, 32),)), file)
    plan = ptt.read(
        file,
        mesh="data=2",
        hardware="h100",
        tactics=[pt.ManualPartition({"up.weight": 0}, axis="data")],
    )
    assert plan.placements["up.weight"] == (Shard(0),)
    assert plan.placements["down.weight"] == (Shard(1),)
    assert plan.module_placements["up"].outputs == ((Shard(1),),)


def test_the_command_plans_modules_and_files(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(32, 16), torch.zeros(8, 32)\n"
    )
    words = ["plan", f"{file}:make", "--frontend", "torch", "--mesh", "data=2", "--hardware"]
    cli.app([*words, "h100", "--manual", "input:0@data", "--axes", "none"], standalone_mode=False)
    assert "weight" in capsys.readouterr().out
    searching = [*words, "h100", "--budget", "5"]
    cli.app([*searching, "--target", "dtensor"], standalone_mode=False)
    assert "avoid=collective_permute" in capsys.readouterr().out


class Smooth(torch.nn.Module):
    """Convolutions along one long dimension, which are quickest split along it."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(64, 64, 9, padding="same")

    def forward(self, x):
        return torch.tanh(self.conv(x))


def smooth(**options):
    with torch.device("meta"):
        given = torch.zeros(1, 64, 2**20)
        return ptt.plan(Smooth(), given, mesh="x=4", hardware="h100", **options)


def test_a_plan_for_dtensor_stays_inside_of_what_it_can_do():
    free = smooth(budget=50)
    assert {c.kind for c in free.collectives} == {"collective_permute"}
    (reason,) = free.refusals
    assert "AutomaticPartition(axes=['x'])" in reason and 'target="dtensor"' in reason
    assert smooth(budget=50, target="dtensor").refusals == ()
    with pytest.raises(pt.UnsupportedError, match="along x devices hand shards"):
        smooth(tactics=pt.ManualPartition({"x": 2}, axis="x"), target="dtensor")
    with pytest.raises(pt.OptionError, match="known is 'dtensor'"):
        smooth(target="xla")


def test_the_mesh_can_be_chosen():
    plan = planned(mesh=None, devices=4, budget=20, tactics=None)
    assert plan.plan.mesh.devices == 4 and len(plan.plan.meshes) > 1
    assert {len(p) for p in plan.placements.values()} == {len(plan.axes)}
    with pytest.raises(pt.MeshError, match="either, not both"):
        planned(mesh="data=4", devices=4)


def test_a_forward_needs_no_loss():
    plan = planned(pt.DataParallel("data"), loss=None, targets=None, optimizer=None)
    assert plan.output_placements == {"output": (Shard(0), Replicate())}
    assert plan.collectives == ()


def test_a_module_on_the_meta_device_is_planned_as_any_other():
    with torch.device("meta"):
        module = Transformer()
    plan, real = (planned(pt.DataParallel("data"), module=m) for m in (module, Transformer()))
    assert plan.placements == real.placements
    assert plan.estimate.step_time == real.estimate.step_time


def test_tied_parameters_are_one_under_both_names():
    plan = planned(pt.ManualPartition({"embed.weight": 0}, axis="model"), module=Tied())
    assert plan.placements["embed.weight"] == (Replicate(), Shard(0))
    assert plan.placements["head.weight"] == plan.placements["embed.weight"]


def test_source_lines_and_values_are_those_of_the_module():
    plan = planned(pt.DataParallel("data"), MODEL)
    assert any("torch_models.py" in c.source for c in plan.collectives)
    assert "layers.1.mlp.up.weight" in str(plan.explain("layers.1.mlp.up.weight", 0))


def test_layers_are_traced_once_and_priced_each():
    few, many = (planned(module=Transformer(layers=n), mesh="data=2") for n in (2, 4))
    assert len(many.placements) > len(few.placements)
    assert many.estimate.step_time > few.estimate.step_time


def test_what_the_numbers_decide_is_an_error_that_says_where():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(pt.TraceError, match=r"test_torch_plan.py:\d+ \(return x if x.sum"):
        ptt.plan(Branch(), torch.ones(3), mesh="data=2", hardware="h100")


def test_an_unknown_operation_is_an_error_that_names_it_and_its_line():
    @torch.library.custom_op("partita_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)

    class Twice(torch.nn.Module):
        def forward(self, x):
            return twice(x)

    def plan():
        return ptt.plan(Twice(), torch.ones(4), mesh="data=2", hardware="h100", tactics=[])

    with pytest.raises(
        pt.UnsupportedError, match=r"test_torch_plan.py:\d+ uses partita_test.twice"
    ):
        plan()
    ptt.operation(torch.ops.partita_test.twice.default)(lambda x: 2 * x)
    assert plan().input_placements == {"x": (Replicate(),)}


def test_wrong_options_say_what_is_known():
    with pytest.raises(pt.OptionError, match="'adamw', 'adam', 'sgd'"):
        planned(optimizer="adamx")
    with pytest.raises(pt.OptionError, match="one number"):
        planned(loss=lambda logits, targets: logits)
    with pytest.raises(pt.OptionError, match="give loss="):
        ptt.plan(MLP(), torch.ones(2, 32), mesh="data=2", hardware="h100", optimizer="sgd")
