"""Results of bench.py as one JSON file, and as a table on standard output.

Usage: collect.py RESULTS_JSONL OUTPUT_DIR COMMIT
"""

import datetime
import importlib.metadata
import json
import pathlib
import sys


def main() -> None:
    results, out, commit = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    import torch

    records = [json.loads(line) for line in results.read_text().splitlines()]
    device = torch.cuda.get_device_name()
    report = {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "device": device,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("vllm", "torch", "triton", "transformers")
        },
        "weights": "random (load_format dummy); pages of decode points hold encoded random rows",
        "results": records,
    }
    name = f"{report['date']}-cuda-vllm-{device.lower().replace(' ', '-')}.json"
    (out / name).write_text(json.dumps(report, indent=1) + "\n")
    points = list(dict.fromkeys(r["point"] for r in records if "point" in r))
    engines = list(dict.fromkeys((r["model"], r["cache"]) for r in records))
    print("| model, cache | " + " | ".join(points) + " |")
    print("| --- " * (len(points) + 1) + "|")
    for model, cache in engines:
        cells = []
        for point in points:
            found = [
                r
                for r in records
                if (r["model"], r["cache"], r.get("point")) == (model, cache, point)
            ]
            cells.append(cell(found[-1]) if found else "")
        print(f"| {model} {cache} | " + " | ".join(cells) + " |")


def cell(record: dict) -> str:
    if "skipped" in record:
        return record["skipped"]
    if record["point"].startswith("prefill"):
        return f"{record.get('first_s', '?')} s"
    if record["point"].startswith("serve"):
        return f"{record['served_tokens_per_s']} tokens/s"
    return f"x{record['batch']}: {record.get('ms', '?')} ms, {record.get('tokens_per_s', '?')}/s"


if __name__ == "__main__":
    main()
