# SPDX-License-Identifier: Apache-2.0
"""Tasks scored by transformers as docs/guide/evaluation.md says, in the plain way: padded batches, whole logits.

Their softmax is in double, for that of PyTorch in fp32 is off by more than all that comes before it.
"""

import json
import re

import torch


def read_task(path):
    """Rows, and the header's fields."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    fields = {"context", "prompt", "text"}
    header = {} if fields & set(lines[0]) else lines.pop(0)
    return lines, header


def context_of(row, header):
    delimiter = header.get("delimiter", " ")
    parts = []
    for shot in header.get("shots", []):
        answer = shot["choices"][shot["answer"]] if "choices" in shot else shot.get("target", shot.get("answer"))
        parts.append(shot.get("context", shot.get("prompt")) + delimiter + answer + header.get("shot_delimiter", "\n\n"))
    return "".join(parts) + row.get("context", row.get("prompt", ""))


class Scorer:
    def __init__(self, model, tokenizer, first_token, longest, batch=16):
        self.model, self.tokenizer, self.first_token, self.longest, self.batch = model, tokenizer, first_token, longest, batch

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def context(self, row, header):
        """The text that the model reads, and what comes before a continuation."""
        text = context_of(row, header)
        if not header.get("chat"):
            return text, header.get("delimiter", " ")
        return self.tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False,
                                                  add_generation_prompt=True), ""

    def pair(self, context, continuation):
        """Ids of a context and of its continuation."""
        kept = context.rstrip()
        context, continuation = kept, context[len(kept):] + continuation
        if not context:
            ids = self.encode(continuation)
            return ([self.first_token], ids) if ids[0] != self.first_token else (ids[:1], ids[1:])
        ids = self.encode(context)
        return ids, self.encode(context + continuation)[len(ids):]

    def windows(self, text):
        """Of a text, each with as much context as the model takes."""
        ids = [self.first_token] + self.encode(text)
        done = 1
        while done < len(ids):
            end = min(done + self.longest, len(ids))
            begin = max(0, end - self.longest - 1)
            yield ids[begin:done], ids[done:end]
            done = end

    def scores(self, pairs):
        """(sum of log-probabilities, whether each token is the likeliest) of pairs of ids. Pairs that differ in their last
        token alone share a row, as in lm-evaluation-harness."""
        results, by_input = [None] * len(pairs), {}
        for i, (context, continuation) in enumerate(pairs):
            by_input.setdefault(tuple((context + continuation)[-(self.longest + 1):][:-1]), []).append(i)
        order = sorted(by_input, key=lambda ids: -len(ids))
        for first in range(0, len(order), self.batch):
            inputs = order[first:first + self.batch]
            tokens = torch.zeros((len(inputs), len(inputs[0])), dtype=torch.long)
            mask = torch.zeros_like(tokens)
            for row, ids in enumerate(inputs):
                tokens[row, :len(ids)] = torch.tensor(ids)
                mask[row, :len(ids)] = 1
            with torch.no_grad():
                logits = self.model(input_ids=tokens, attention_mask=mask).logits
            for row, ids in enumerate(inputs):
                for i in by_input[ids]:
                    labels = torch.tensor(pairs[i][1])
                    of_row = logits[row, len(ids) - len(labels):len(ids)].double().log_softmax(-1)
                    sums = of_row.gather(1, labels[:, None]).sum().item()
                    results[i] = sums, bool((of_row.argmax(-1) == labels).all())
        return results

    def choices(self, rows, header):
        """Sums of each row's choices, with what each normalisation decides."""
        pairs = [self.pair(text, delimiter + choice) for row in rows for text, delimiter in [self.context(row, header)]
                 for choice in row["choices"]]
        scores, results = iter(self.scores(pairs)), []
        for row in rows:
            sums = torch.tensor([next(scores)[0] for _ in row["choices"]], dtype=torch.double)
            lengths = {"acc": [1] * len(sums), "acc_norm": [len(choice) for choice in row["choices"]],
                       "acc_bytes": [len(choice.encode()) for choice in row["choices"]]}
            results.append({"log_probabilities": sums.tolist(),
                            **{name: int((sums / torch.tensor(by)).argmax() == row["answer"]) for name, by in lengths.items()}})
        return results

    def targets(self, rows, header):
        pairs = [self.pair(text, delimiter + row["target"]) for row in rows for text, delimiter in [self.context(row, header)]]
        return [{"log_likelihood": sums, "greedy_match": int(greedy)} for sums, greedy in self.scores(pairs)]

    def texts(self, rows):
        results = []
        for row in rows:
            sums = sum(score[0] for score in self.scores(list(self.windows(row["text"]))))
            results.append({"log_likelihood": sums, "words": len(re.split(r"\s+", row["text"])),
                            "bytes": len(row["text"].encode())})
        return results

    def generated(self, rows, header, stops, new_tokens):
        results = []
        for row in rows:
            ids = self.encode(self.context(row, header)[0])[-(self.longest - new_tokens):]
            with torch.no_grad():
                out = self.model.generate(torch.tensor([ids]), max_new_tokens=new_tokens, do_sample=False, eos_token_id=stops,
                                          pad_token_id=stops[0])[0, len(ids):].tolist()
            text = self.tokenizer.decode(out, skip_special_tokens=True)
            for stop in row.get("stop", []):
                text = text.split(stop)[0]
            found = re.search(row["regex"], text) if "regex" in row else None
            answer = next((group for group in found.groups() if group is not None), found.group()) if found else text
            match = ("regex" not in row or found is not None) and answer.strip() == row["answer"].strip()
            results.append({"generated": text, "exact_match": int(match)})
        return results
