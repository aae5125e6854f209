"""The sbatch options of `resources.options`: names, values, and what the administrator allows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.contract.test_spec import BASE
from trainyard.contract.problems import SpecError
from trainyard.contract.spec.resolve import resolve
from trainyard.contract.spec.sbatch_options import DEFAULT_OPTIONS, SBATCH_OPTIONS, option_problems
from trainyard.contract.spec.sections import Resources
from trainyard.contract.spec.site import Site
from trainyard.contract.spec.training_spec import dump_spec, parse_spec

VALID: Mapping[str, tuple[Any, ...]] = {
    "acctg-freq": ("30", "task=30,energy=60"),
    "comment": ("run 7 of #42; (a & b) 100% <x>|y* ~^!? {z} [q] @u+v=w,:./-_", " ", "-x", "x" * 256),
    "contiguous": (True,),
    "cpu-freq": ("high", "low-high:performance", 2400000),
    "exclusive": (True, "user", "mcs"),
    "gpu-freq": ("medium,memory=high",),
    "gres": ("nvme:1", "nvme", "disk:fast:2,fs", "gpudirect:1"),
    "gres-flags": ("disable-binding",),
    "hint": ("nomultithread",),
    "licenses": ("matlab:2,ansys@server:1", "a|b", "a"),
    "mail-type": ("END,FAIL", "TIME_LIMIT_90"),
    "mail-user": ("a.b+c@example.org", "root"),
    "mcs-label": ("secret",),
    "network": ("instances=2,ib",),
    "nice": (0, "100"),
    "nodelist": ("node1", "node[01-04,7],gpu7", "rack[1-2]-node[1-9]"),
    "prefer": ("ib&a100", "[rack1|rack2]"),
    "profile": ("Task,Energy",),
    "reservation": ("ai", "a,b.c-d"),
    "spread-job": (True,),
    "switches": (1, "1@60:00", "2@1-12:00"),
    "threads-per-core": (1,),
    "tmp": ("100G", 100),
    "use-min-nodes": (True,),
    "wckey": ("project_1",),
}
HOSTILE = (
    *("x\\'\"\ntouch /tmp/pwned #", "a\n#SBATCH --uid=0", "x\n", "a\\", "$(x)", "`x`", "$HOME", "a'b", 'a"b'),
    *("", "\x00", "x\u2028y", "ü", "\u0661", "x" * 257),
)
"""Values that no option accepts: text that sbatch or a shell could read as more than one value."""


def problems(options: Mapping[str, Any], **changes: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse_spec({**BASE, **changes, "resources": {"options": options}})
    return [str(problem) for problem in caught.value.problems]


def slurm_problems(options: Mapping[str, Any], **site: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        resolve(parse_spec({**BASE, "resources": {"options": options}}), Site("cuda", "slurm", **site))
    return [str(problem) for problem in caught.value.problems]


class TestValues:
    def test_valid_values_are_listed_for_every_option(self) -> None:
        assert VALID.keys() == SBATCH_OPTIONS.keys()

    @pytest.mark.parametrize("name", VALID)
    def test_valid_values_are_stored_as_text(self, name: str) -> None:
        for value in VALID[name]:
            spec = parse_spec({**BASE, "resources": {"options": {name: value}}})
            assert spec.resources.options == {name: value if value is True else str(value)}
            assert parse_spec(dump_spec(spec)) == spec

    @pytest.mark.parametrize("name", VALID)
    def test_hostile_values_are_rejected_by_the_path_of_the_option(self, name: str) -> None:
        for value in HOSTILE:
            (problem,) = problems({name: value})
            assert problem.startswith(f"resources.options.{name}: must ")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("nodelist", value) for value in ("/etc/hosts", "[", "node[", "node[1-", "a,,b", "node 1", "-x", "a&b")),
            *(("nice", value) for value in ("-1", -5, "x", "4294967296", True)),
            *(("switches", value) for value in ("x", "1@", "1@x", "@5")),
            *(("gres", value) for value in ("gpu", "gpu:1", "nvme:1,gpu:1", "GPU:2", "gres:gpu:1", "gres/gpu:1")),
            *(("gres", value) for value in ("mps:50", "shard:1", "none", "nvme=1", "a,,b", "nvme:")),
            *(("exclusive", value) for value in ("x", "true", 1, "no")),
            *(("licenses", value) for value in ("a/b", "a:x", ":1", "a,")),
            *(("reservation", value) for value in ("a b", "-a", "a/b")),
            *(("contiguous", value) for value in ("yes", "true", 1)),
            *(("comment", value) for value in (True, "two\nlines", "tab\tbed")),
            ("mail-user", "-oQ/tmp@example.org"),
            ("tmp", "1P"),
        ],
    )
    def test_values_that_sbatch_would_misread_are_rejected(self, name: str, value: Any) -> None:
        (problem,) = problems({name: value})
        assert problem == f"resources.options.{name}: must be {SBATCH_OPTIONS[name].expected}"

    @pytest.mark.parametrize("value", [False, None, 1.5, ["a"], {"a": "b"}])
    def test_other_types_are_rejected_with_one_problem(self, value: Any) -> None:
        (problem,) = problems({"exclusive": value})
        assert problem.startswith("resources.options.exclusive: ")

    def test_the_value_check_alone_stops_hostile_text(self) -> None:
        assert not option_problems({"comment": "plain", "exclusive": True})
        for name in SBATCH_OPTIONS:
            resources = Resources().model_copy(update={"options": {name: HOSTILE[0]}})
            assert option_problems(resources.options)


class TestNames:
    @pytest.mark.parametrize("name", ["--nodelist", "node-list", "NODELIST", "node_list"])
    def test_another_spelling_is_rejected_with_the_right_one(self, name: str) -> None:
        (problem,) = problems({"nodelist": "node1", name: "node1"})
        assert problem.startswith(f"resources.options.{name}: ")
        assert problem.endswith(("write it as `nodelist`", "did you mean `nodelist`?"))

    def test_underscores_are_corrected(self) -> None:
        assert problems({"gres_flags": "disable-binding"}) == ["resources.options.gres_flags: write it as `gres-flags`"]

    def test_an_unknown_option_has_a_suggestion(self) -> None:
        assert problems({"licences": "a"}) == ["resources.options.licences: unknown option; did you mean `licenses`?"]
        (problem,) = problems({"qwxyz": "a"})
        assert "unknown option; there are: acctg-freq, comment, " in problem

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("partition", "`resources.partition`"),
            ("time", "`resources.time_limit_minutes`"),
            ("ntasks-per-node", "`gpus`"),
            ("gpus_per_node", "`resources.gpus_per_node`"),
            ("export", "`environment.variables`"),
            ("array", "a sweep"),
            ("dependency", "`after`"),
            ("job-name", "set `name`"),
            ("requeue", "submits each next attempt"),
            ("signal", "TRAINYARD_SLURM_SIGNAL_LEAD_SECONDS"),
            *((name, "") for name in ("wrap", "uid", "chdir", "propagate", "get-user-env", "open-mode")),
        ],
    )
    def test_options_of_the_service_are_rejected_with_the_field_to_use(self, name: str, advice: str) -> None:
        (problem,) = problems({name: "1"})
        assert problem.startswith(f"resources.options.{name}: ")
        assert advice in problem
        assert "unknown" not in problem

    @pytest.mark.parametrize("name", ["a b", "x\ntouch /tmp/pwned", "wrap;id", "", "ü", "x" * 65])
    def test_a_malformed_name_is_rejected(self, name: str) -> None:
        assert len(problems({name: "1"})) == 1

    def test_at_most_32_options(self) -> None:
        assert len(problems({f"x{n}": "1" for n in range(33)})) == 1

    def test_an_option_outside_its_section_is_advised(self) -> None:
        with pytest.raises(SpecError) as caught:
            parse_spec({**BASE, "resources": {"reservation": "ai", "gres_flags": "x"}})
        assert [str(problem) for problem in caught.value.problems] == [
            "resources.reservation: unknown field; use `resources.options.reservation`",
            "resources.gres_flags: unknown field; use `resources.options.gres-flags`",
        ]


class TestSites:
    def test_the_default_options_are_accepted_on_slurm(self) -> None:
        options = {name: VALID[name][0] for name in DEFAULT_OPTIONS}
        assert resolve(parse_spec({**BASE, "resources": {"options": options}}), Site("cuda", "slurm"))

    def test_other_options_need_the_administrator(self) -> None:
        (problem,) = slurm_problems({"mail-user": "me"})
        assert problem.startswith(
            "resources.options.mail-user: is not allowed by this service (TRAINYARD_SLURM_ALLOWED"
        )
        site = Site("cuda", "slurm", sbatch_options=frozenset({"mail-user"}))
        assert resolve(parse_spec({**BASE, "resources": {"options": {"mail-user": "me"}}}), site)

    def test_the_administrator_can_narrow_the_list(self) -> None:
        (problem,) = slurm_problems({"nodelist": "node1"}, sbatch_options=frozenset({"comment"}))
        assert problem.endswith("allowed are: comment")
        (problem,) = slurm_problems({"nodelist": "node1"}, sbatch_options=frozenset())
        assert problem.endswith("none is allowed")

    def test_an_option_that_the_administrator_sets_is_rejected(self) -> None:
        (problem,) = slurm_problems({"reservation": "mine"}, fixed_options=frozenset({"reservation"}))
        assert problem == (
            "resources.options.reservation: cannot be set: this service sets `reservation` for every job "
            "(TRAINYARD_SLURM_EXTRA_OPTIONS)"
        )
        (problem,) = slurm_problems({"exclusive": True}, fixed_options=frozenset({"oversubscribe"}))
        assert "this service sets `oversubscribe`" in problem

    def test_the_local_backend_rejects_options(self) -> None:
        with pytest.raises(SpecError) as caught:
            resolve(parse_spec({**BASE, "resources": {"options": {"comment": "x"}}}), Site())
        assert [problem.param for problem in caught.value.problems] == ["resources"]
        assert resolve(parse_spec({**BASE, "resources": {"options": {}}}), Site())


def test_the_operations_page_lists_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name, option in SBATCH_OPTIONS.items():
        (row,) = (row for row in rows if row.startswith(f"| `{name}` |"))
        assert ("| yes |" in row) == option.is_default, name
