"""Hugging Face's Trainer: `trainer.py lm|glue|default|stream`."""

import sys

import generated
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

import torch

KIND = sys.argv[1]


class Stream(torch.utils.data.IterableDataset):
    """Texts of different lengths without an index, as `datasets` streams them."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def main():
    set_seed(42)
    tokenizer = generated.tokenizer()
    texts = [tokenizer(text) for text in generated.sentences(160)]
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    options = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "logging_steps": 5}
    evaluation = None
    if KIND == "lm":
        model, data = BertForMaskedLM(config), [dict(text) for text in texts]
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
        options |= {"gradient_accumulation_steps": 2, "save_steps": 10}
        evaluation = data[:32]
    elif KIND == "stream":
        model = BertForMaskedLM(config)
        collator = DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=16)
        data = Stream([dict(text) for text in texts])
        options |= {"max_steps": 30}
    else:
        model = BertForSequenceClassification(config)
        data = [dict(text) | {"label": place % 2} for place, text in enumerate(texts)]
        collator = DataCollatorWithPadding(tokenizer)
        options |= {"bf16": KIND == "glue"}
        evaluation = data[:32]
    if KIND == "default":
        length = {"padding": "max_length", "max_length": 16}
        padded = [tokenizer(text, **length) for text in generated.sentences(160)]
        data = [dict(text) | {"label": place % 2} for place, text in enumerate(padded)]
        collator, evaluation = None, data[:32]
    if evaluation is not None:
        options |= {"eval_strategy": "steps", "eval_steps": 8}
    options["use_cpu"] = not torch.cuda.is_available()
    arguments = TrainingArguments("out", report_to=[], disable_tqdm=True, **options)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=evaluation,
        data_collator=collator,
        processing_class=tokenizer if KIND != "default" else None,
    )
    print(trainer.train().training_loss)
    if evaluation is not None:
        print(trainer.evaluate()["eval_loss"])


if __name__ == "__main__":
    main()
