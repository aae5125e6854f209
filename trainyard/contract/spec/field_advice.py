"""Advice for fields that other training programs have under another name."""

from trainyard.contract.spec.sbatch_options import SBATCH_OPTIONS

_ALIASES = {
    "optimizer.lr": ("learning_rate", "lr_rate", "optimizer.learning_rate"),
    "optimizer.clip_norm": ("max_grad_norm", "grad_clip", "clip_grad_norm", "gradient_clipping"),
    "loss.label_smoothing": ("label_smoothing", "label_smoothing_factor"),
    "loss.z_loss": ("z_loss", "z_loss_weight", "softmax_auxiliary_loss"),
    "batch.size": ("batch_size", "train_batch_size", "global_batch_size", "batch.batch_size"),
    "batch.loaders": ("num_workers", "dataloader_num_workers", "data.num_workers", "batch.workers"),
    "batch.micro_size": ("micro_batch_size", "per_device_train_batch_size"),
    "data.format": ("data.type", "data.dataset_type", "data.chat_format"),
    "data.path": ("data.file", "data.files", "data.paths", "data.data_files", "data.dataset_path"),
    "data.sources": ("data.datasets", "data.mix", "data.mixture"),
    "data.eval_fraction": ("data.val_set_size", "data.validation_split", "data.test_size"),
    "data.max_length": ("data.sequence_len", "data.max_seq_length", "data.cutoff_len"),
    "data.packing": ("data.sample_packing",),
    "data.eval_path": ("data.validation_file", "data.validation_path", "data.eval_file"),
    "after": ("depends_on", "dependency", "dependencies", "afterok", "resources.dependency"),
    "gpus": ("num_gpus", "n_gpus", "ngpus", "num_devices", "devices", "world_size", "resources.gpus"),
    "steps": ("max_steps", "num_steps", "n_steps", "total_steps"),
    "epochs": ("num_epochs", "n_epochs", "max_epochs", "num_train_epochs"),
    "precision": ("mixed_precision", "dtype", "fp16", "bf16", "fp8"),
    "lora_rank": ("lora_r", "lora.r", "lora.rank"),
    "lora.alpha": ("lora_alpha",),
    "lora.dropout": ("lora_dropout",),
    "lora.rslora": ("use_rslora", "lora.use_rslora", "rslora"),
    "lora.dora": ("use_dora", "lora.use_dora", "dora"),
    "lora.modules_to_save": ("modules_to_save", "lora_modules_to_save"),
    "lora.rank_pattern": ("rank_pattern", "lora_rank_pattern"),
    "lora.alpha_pattern": ("alpha_pattern", "lora_alpha_pattern"),
    "lora.adapter": ("lora_model_dir", "adapter", "adapter_name_or_path"),
    "loss.neftune_alpha": ("neftune_noise_alpha", "loss.neftune_noise_alpha", "neftune_alpha"),
    "objective": ("rl", "stage", "training_type"),
    "preference.beta": ("beta", "dpo_beta", "kto_beta", "orpo_alpha", "pref_beta"),
    "preference.loss_type": ("loss_type",),
    "preference.simpo_gamma": ("simpo_gamma", "preference.gamma"),
    "preference.desirable_weight": ("desirable_weight", "kto_desirable_weight"),
    "preference.undesirable_weight": ("undesirable_weight", "kto_undesirable_weight"),
    "evaluation.samples": ("samples", "sample_prompts", "evaluation.prompts"),
    "lora.targets": ("target_modules", "lora.target_modules"),
    "schedule.name": ("scheduler", "lr_scheduler", "lr_scheduler_type"),
    "schedule.warmup_ratio": ("warmup_ratio",),
    "schedule.warmup_steps": ("warmup_steps", "num_warmup_steps"),
    "model.key_value_heads": ("model.kv_heads", "model.n_kv_heads", "model.num_kv_heads", "model.num_key_value_heads"),
    "ema.decay": ("ema_decay", "ema.beta", "ema.momentum"),
    "ema.every": ("ema.every_steps", "ema.update_every"),
    "evaluation.every_steps": ("eval_steps", "eval_every"),
    "evaluation.first": ("eval_on_start",),
    "evaluation.limit": ("max_eval_samples",),
    "evaluation.micro_size": ("per_device_eval_batch_size", "eval_batch_size"),
    "early_stopping.patience": ("early_stopping_patience", "patience"),
    "early_stopping.min_delta": ("early_stopping_threshold", "min_delta"),
    "checkpoint.every_steps": ("save_steps", "save_every"),
    "log.every_steps": ("logging_steps", "log_every"),
    "activation_checkpointing": ("gradient_checkpointing",),
    "resources.partition": ("partition",),
}

UNKNOWN_FIELD_ADVICE = {
    **{alias: f"use `{field}`" for field, aliases in _ALIASES.items() for alias in aliases},
    **{
        f"resources.{spelling}": f"use `resources.options.{name}`"
        for name in SBATCH_OPTIONS
        for spelling in {name, name.replace("-", "_")}
    },
    "gradient_accumulation_steps": "it follows from `batch.size`, `batch.micro_size` and `gpus`",
    "data.path": "`path` is for source `jsonl`; builtin data sets have a `name`",
    "model.path": "`path` is for source `hf`; builtin models have a `name`",
}
"""Remedies by the path of an unknown field."""
