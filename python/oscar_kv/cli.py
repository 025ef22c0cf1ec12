"""`oscar-kv`: calibration of Hugging Face models, import and conversion of artefacts."""

import argparse
import os
import sys
from collections.abc import Sequence

from oscar_kv import _library as library
from oscar_kv.artefact import PAIRINGS, Artefact, ModelShape
from oscar_kv.calibration import METHODS
from oscar_kv.errors import InvalidArgumentError, IoError, NotFoundError, OscarError
from oscar_kv.rotations import DEFAULT_K_CLIP, DEFAULT_V_CLIP


def say(text: str) -> None:
    print(text, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="oscar-kv",
        description="A KV cache of about two bits a value: calibration and artefacts.",
    )
    parser.add_argument("--version", action="version", version=f"oscar-kv {library.version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "calibrate",
        help="fit an artefact to a Hugging Face model folder",
        description="Runs a text through the model and fits an artefact; needs transformers.",
        epilog="Example: oscar-kv calibrate Qwen3-0.6B --text prose.txt --text code.txt -o q.st",
    )
    command.add_argument("model", metavar="MODEL_DIR", help="folder with config.json and weights")
    command.add_argument(
        "--text", action="append", required=True, metavar="F", help="UTF-8 text; may be given again"
    )
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="artefact to write")
    command.add_argument("--method", choices=METHODS, default="oscar-plus")
    command.add_argument(
        "--tokens", type=int, default=8192, metavar="N", help="tokens to use (8192)"
    )
    command.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    command.add_argument(
        "--seed", type=int, default=1, metavar="N", help="chooses sampled rows (1)"
    )
    command.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model (float32)"
    )
    command.set_defaults(run=_calibrate)

    command = commands.add_parser("inspect", help="say what an artefact holds")
    command.add_argument("file", metavar="FILE")
    command.set_defaults(run=_inspect)

    command = commands.add_parser(
        "convert",
        help="put an artefact's key channels in the order of another RoPE pairing",
        description="Hugging Face checkpoints are half_split, GGUF files of the llama architecture "
        "interleaved. The hash of the weights is dropped.",
    )
    command.add_argument("file", metavar="FILE")
    command.add_argument("--pairing", choices=PAIRINGS, required=True)
    command.add_argument("-o", "--output", required=True, metavar="FILE")
    command.set_defaults(run=_convert)

    command = commands.add_parser(
        "import-rotations",
        help="make an artefact of the paper's public rotation files (.pt, format 1 and 2)",
        description="The model's shape and hash come from MODEL_DIR. Needs torch and transformers.",
    )
    command.add_argument("model", metavar="MODEL_DIR")
    command.add_argument("--keys", required=True, metavar="FILE.pt")
    command.add_argument("--values", required=True, metavar="FILE.pt")
    command.add_argument("-o", "--output", required=True, metavar="FILE")
    command.add_argument("--k-clip", type=float, default=DEFAULT_K_CLIP, metavar="R")
    command.add_argument("--v-clip", type=float, default=DEFAULT_V_CLIP, metavar="R")
    command.set_defaults(run=_import_rotations)
    return parser


def check_output(path: str) -> None:
    """Refuses, before any work, a file that could not be written or is something else's."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise NotFoundError(f"{path}: there is no folder {folder}")
    if os.path.isdir(path):
        raise InvalidArgumentError(f"{path}: is a folder; give a file")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise IoError(f"{path}: may not be written")
    if not os.path.exists(path):
        return
    try:
        Artefact.load(path)
    except OscarError:
        raise InvalidArgumentError(
            f"{path}: is there and is no artefact, so it is not replaced; give another name"
        ) from None


def _calibrate(options: argparse.Namespace) -> None:
    check_output(options.output)
    from oscar_kv.transformers import calibrate_folder

    artefact, warnings = calibrate_folder(
        options.model,
        options.text,
        method=options.method,
        num_tokens=options.tokens,
        num_threads=options.threads,
        seed=options.seed,
        dtype=options.dtype,
        progress=say,
    )
    if os.path.dirname(os.path.abspath(options.output)) == os.path.abspath(options.model):
        warnings.append(
            f"{options.output} lies in the model's folder: vLLM takes every .safetensors file "
            "there for weights, and will not start; put it elsewhere"
        )
    for warning in warnings:
        say(f"warning: {warning}")
    artefact.save(options.output)
    say(f"wrote {options.output}")


def _inspect(options: argparse.Namespace) -> None:
    artefact = Artefact.load(options.file)
    model: ModelShape = artefact.model
    print(f"method        {artefact.method}")
    print(f"architecture  {artefact.architecture or 'not known'}")
    print(
        f"model         {model.num_layers} layers, {model.num_q_heads} query and "
        f"{model.num_kv_heads} KV heads of {model.head_dim_k}"
        + (f" and {model.head_dim_v}" if model.head_dim_v != model.head_dim_k else "")
    )
    print(f"weights hash  {artefact.weights_hash or 'not known'}")
    ropes = ", ".join(f"{rope.pairing} {len(rope.inv_freq)} pairs" for rope in artefact.ropes)
    print(f"RoPE          {ropes or 'not known'}")
    errors = artefact.tensors["errors"]
    print(f"errors        keys {errors[:, 0].mean():.4g}, values {errors[:, 1].mean():.4g} (mean)")
    for key, value in sorted(artefact.info.items()):
        print(f"{key}: {value}")


def _convert(options: argparse.Namespace) -> None:
    check_output(options.output)
    Artefact.load(options.file).with_pairing(options.pairing).save(options.output)
    say(f"wrote {options.output}")


def _import_rotations(options: argparse.Namespace) -> None:
    check_output(options.output)
    from oscar_kv.rotations import import_rotations
    from oscar_kv.transformers.model import describe_folder

    described = describe_folder(options.model)
    artefact = import_rotations(
        options.keys,
        options.values,
        described.shape,
        architecture=described.architecture,
        weights_hash=described.weights_hash,
        k_clip=options.k_clip,
        v_clip=options.v_clip,
    )
    artefact.save(options.output)
    say(f"wrote {options.output}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except OscarError as error:
        say(f"error: {error}")
        return 1
    except ModuleNotFoundError as error:
        say(f"error: {error.name} is missing; install oscar-kv[transformers]")
        return 1
    except KeyboardInterrupt:
        say("error: interrupted; nothing was written")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
