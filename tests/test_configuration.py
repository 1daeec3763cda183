"""Settings arrive, or somebody says that they did not: through files, dicts and the environment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamo_llm import BlockManager, ConfigError

MODEL = {"num_layers": 2, "page_size": 4, "inner_dim": 8}
BLOCK = {"device": 2 * 2 * 4 * 8 * 2, "host": 4096}
"""Bytes that a block of the model takes; on the host it lies on a page of its own."""

Make = Callable[[dict[str, dict[str, Any]]], BlockManager]
"""A manager of `MODEL` with the settings of these sections."""


def toml(tree: dict[str, dict[str, Any]]) -> str:
    """A file with the settings; JSON's scalars are TOML's, too."""
    return "".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for section, table in tree.items()
    )


@pytest.fixture(params=["dict", "file", "environment"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def from_dict(tree: dict[str, dict[str, Any]]) -> BlockManager:
        return BlockManager.from_config({"model": MODEL, **tree})

    def from_file(tree: dict[str, dict[str, Any]]) -> BlockManager:
        path = tmp_path / "settings.toml"
        path.write_text(toml({"model": MODEL, **tree}))
        return BlockManager.from_config(path)

    def from_environment(tree: dict[str, dict[str, Any]]) -> BlockManager:
        for section, table in {"model": MODEL, **tree}.items():
            for key, value in table.items():
                monkeypatch.setenv(f"DYNAMO_LLM_{section}_{key}".upper(), str(value))
        return BlockManager.from_env()

    made: dict[str, Make] = {
        "dict": from_dict,
        "file": from_file,
        "environment": from_environment,
    }
    return made[request.param]


def blocks(manager: BlockManager) -> dict[str, int]:
    """Blocks of each tier that is on."""
    tiers: dict[str, dict[str, int]] = manager.status()["tiers"]
    return {tier: figures["blocks"] for tier, figures in tiers.items()}


def findings(manager: BlockManager, severity: str) -> list[str]:
    return [
        f"{it['field']} = {it['value']}: {it['message']}; {it['remedy']}"
        for it in manager.findings
        if it["severity"] == severity
    ]


# --- a setting arrives, or its sender hears about it ---


def test_a_missing_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        BlockManager.from_config(missing)
    monkeypatch.setenv("DYNAMO_LLM_CONFIG", missing)
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        BlockManager.from_env()
    monkeypatch.setenv("DYNAMO_LLM_CONFIG", str(tmp_path))
    with pytest.raises(ConfigError, match=str(tmp_path)):
        BlockManager.from_env()


def test_an_unreadable_file_is_an_error_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[device]\nblocks = = 8\n")
    with pytest.raises(ConfigError, match=r"settings\.toml.*line 2") as error:
        BlockManager.from_config(path)
    assert "\n\n" not in str(error.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("DYNAMO_LLM_HOST_BLOKS", "DYNAMO_LLM_HOST_BLOCKS"),
        ("DYNAMO_LLM_DEVICE_BLOCK", "DYNAMO_LLM_DEVICE_BLOCKS"),
        ("DYNAMO_LLM_MODEL_NUMLAYERS", "DYNAMO_LLM_MODEL_NUM_LAYERS"),
        ("DYNAMO_LLM_CONFG", "DYNAMO_LLM_CONFIG"),
    ],
)
def test_a_misspelt_variable_is_a_warning_with_the_nearest_name(
    wrong: str, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in MODEL.items():
        monkeypatch.setenv(f"DYNAMO_LLM_MODEL_{key}".upper(), str(value))
    monkeypatch.setenv("DYNAMO_LLM_DEVICE_BLOCKS", "8")
    monkeypatch.setenv(wrong, "77")
    with BlockManager.from_env() as manager:
        assert blocks(manager)["device"] == 8
        (warning,) = (it for it in findings(manager, "warning") if wrong in it)
        assert right in warning
    monkeypatch.setenv("DYNAMO_LLM_STRICT", "true")
    with pytest.raises(ConfigError, match=f"{wrong}.*{right}"):
        BlockManager.from_env()


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"devise": {"blocks": 8}}, "devise.*device"),
        ({"device": {"bloks": 8}}, "device.bloks.*blocks"),
        ({"model": {**MODEL, "dtpye": "fp16"}}, "dtpye.*dtype"),
    ],
)
@pytest.mark.parametrize("form", ["dict", "file"])
def test_a_misspelt_key_is_an_error_with_the_nearest_name(
    tree: dict[str, dict[str, Any]], words: str, form: str, tmp_path: Path
) -> None:
    tree = {"model": MODEL, **tree}
    path = tmp_path / "settings.toml"
    path.write_text(toml(tree))
    with pytest.raises(ConfigError, match=words):
        BlockManager.from_config(tree if form == "dict" else path)


def test_the_environment_wins_and_every_setting_tells_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(toml({"model": MODEL, "device": {"blocks": 8}, "host": {"blocks": 32}}))
    monkeypatch.setenv("DYNAMO_LLM_CONFIG", str(path))
    monkeypatch.setenv("DYNAMO_LLM_DEVICE_BLOCKS", "16")
    with BlockManager.from_env() as manager:
        assert blocks(manager) == {"device": 16, "host": 32}
        settings = manager.status()["settings"]
        assert settings["device.blocks"]["value"] == 16
        assert "DYNAMO_LLM_DEVICE_BLOCKS" in settings["device.blocks"]["source"]
        assert "settings.toml" in settings["host.blocks"]["source"]
        assert settings["transfer.deadline_ms"]["source"] == "default"
    # A file that is given is the whole truth: nobody asked for the environment.
    with BlockManager.from_config(path) as manager:
        assert blocks(manager) == {"device": 8, "host": 32}


# --- sizes that switch off, do not suffice, or do not divide ---


@pytest.mark.parametrize("off", ["blocks", "bytes"])
@pytest.mark.parametrize(("tier", "other"), [("host", "device"), ("device", "host")])
def test_a_tier_of_size_zero_is_off(make: Make, tier: str, other: str, off: str) -> None:
    with make({tier: {off: 0}, other: {"blocks": 4}}) as manager:
        assert blocks(manager) == {other: 4}
        pools = {"device": manager.get_device_pool(), "host": manager.get_host_pool()}
        assert pools[tier] is None
        assert pools[other] is not None
        # Switched off on purpose is nothing to warn about.
        assert findings(manager, "warning") == []


def test_defaults_of_the_constructor_are_nobody_s_wishes() -> None:
    """Switching a tier off makes some of them useless, which is nothing to warn about."""
    with BlockManager(2, 4, 8, device_blocks=4, host_blocks=0, strict=True) as manager:
        assert findings(manager, "warning") == []
    with pytest.raises(ConfigError, match=r"offload_policy.*without effect"):
        BlockManager(
            2, 4, 8, device_blocks=4, host_blocks=0, strict=True, offload_policy="write_through"
        )


def test_settings_of_a_tier_that_is_off_are_without_effect_and_said_to_be(make: Make) -> None:
    with make({"host": {"blocks": 0, "prefault": True}, "device": {"blocks": 4}}) as manager:
        (warning,) = findings(manager, "warning")
        assert "host.prefault" in warning
        assert "without effect" in warning


def test_everything_off_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="every tier is off"):
        make({"host": {"blocks": 0}, "device": {"bytes": 0}})


@pytest.mark.parametrize("tier", ["device", "host"])
def test_less_than_a_block_is_refused_with_the_least_that_works(make: Make, tier: str) -> None:
    other = {"device": "host", "host": "device"}[tier]
    least = BLOCK[tier]
    with pytest.raises(ConfigError, match=rf"{tier}.bytes = {least - 1}.*at least {least}"):
        make({tier: {"bytes": least - 1}, other: {"blocks": 0}})
    with make({tier: {"bytes": least}, other: {"blocks": 0}}) as manager:
        assert blocks(manager) == {tier: 1}


@pytest.mark.parametrize("tier", ["device", "host"])
def test_what_is_no_multiple_of_a_block_is_rounded_down_and_said(make: Make, tier: str) -> None:
    other = {"device": "host", "host": "device"}[tier]
    size = 5 * BLOCK[tier] + 1
    with make({tier: {"bytes": size}, other: {"blocks": 0}}) as manager:
        assert blocks(manager) == {tier: 5}
        (said,) = (it for it in findings(manager, "info") if it.startswith(f"{tier}.bytes"))
        for number in (size, 5, BLOCK[tier], 5 * BLOCK[tier]):
            assert str(number) in said
    with make({tier: {"bytes": 5 * BLOCK[tier]}, other: {"blocks": 0}}) as manager:
        assert not any(it.startswith(f"{tier}.bytes") for it in findings(manager, "info"))


# --- sizes of tiers beside each other ---


def test_a_lower_tier_smaller_than_the_one_above_is_a_warning_with_numbers(make: Make) -> None:
    with make({"device": {"blocks": 100}, "host": {"blocks": 20}}) as manager:
        assert blocks(manager) == {"device": 100, "host": 20}
        (warning,) = findings(manager, "warning")
        for words in ("host.blocks = 20", "device tier of 100", "more than 100"):
            assert words in warning
    with make({"device": {"blocks": 20}, "host": {"blocks": 100}}) as manager:
        assert findings(manager, "warning") == []


def test_on_request_it_is_refused() -> None:
    tiers = {"device": {"blocks": 100}, "host": {"blocks": 20}}
    with pytest.raises(ConfigError, match=r"host.blocks = 20.*100"):
        BlockManager.from_config({"model": MODEL, **tiers, "strict": True})
    with pytest.raises(ConfigError, match=r"host_blocks = 20.*100"):
        BlockManager(2, 4, 8, device_blocks=100, host_blocks=20, strict=True)


# --- values that are none ---


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("device", "blocks", -1),
        ("device", "blocks", 2**50),
        ("device", "blocks", 1.5),
        ("device", "bytes", "many"),
        ("device", "bytes", "4 QiB"),
        ("device", "layout", "diagonal"),
        ("host", "eviction", "random"),
        ("model", "dtype", "fp7"),
        ("model", "page_size", 0),
        ("model", "page_size", 1025),
        ("offload", "policy", "sometimes"),
        ("transfer", "deadline_ms", 0),
        ("transfer", "threads", 0),
    ],
)
def test_an_impossible_value_names_setting_value_and_remedy(
    make: Make, section: str, key: str, value: Any
) -> None:
    tree = {section: {**(MODEL if section == "model" else {}), key: value}}
    with pytest.raises(ConfigError, match=f"(?i){key}") as error:
        make(tree)
    message = str(error.value)
    assert f"{section}.{key}" in message or f"{section}_{key}".upper() in message
    assert str(value) in message or str(value).upper() in message
    assert ";" in message or "expected" in message
