"""A loop with accelerate, as transformers' run_glue_no_trainer: accumulation and clipping."""

import generated
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    get_scheduler,
)

import torch
from torch.utils.data import DataLoader


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    set_seed(42)
    tokenizer = generated.tokenizer()
    data = []
    for place, text in enumerate(generated.sentences(160)):
        data.append(dict(tokenizer(text)) | {"label": place % 2})
    collator = DataCollatorWithPadding(tokenizer)
    train = DataLoader(data, shuffle=True, collate_fn=collator, batch_size=4)
    evaluation = DataLoader(data[:40], collate_fn=collator, batch_size=8)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=32,
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_scheduler("linear", optimizer, 0, num_training_steps=40)
    model, optimizer, train, evaluation, schedule = accelerator.prepare(
        model, optimizer, train, evaluation, schedule
    )
    for epoch in range(2):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        for batch in evaluation:
            with torch.no_grad():
                outputs = model(**batch)
            accelerator.gather_for_metrics((outputs.logits.argmax(-1), batch["labels"]))
        accelerator.print(epoch, loss.item())
    accelerator.save_state("state")
    accelerator.end_training()


if __name__ == "__main__":
    main()
