// Which values of a metric are better, by its name. As in trainyard/contract/evaluation_metric.py. Pure functions.

const HIGHER_IS_BETTER = [
  "acc",
  "accuracy",
  "auc",
  "bleu",
  "f1",
  "map",
  "mfu",
  "ndcg",
  "precision",
  "psnr",
  "r2",
  "recall",
  "reward",
  "return",
  "rouge",
  "score",
  "ssim",
  "success",
  "throughput",
  "win_rate",
];

/**
 * Whether the best value of a metric is its largest, by the words of its name: `eval/accuracy`.
 *
 * @param {string} metric
 */
export function isHigherBetter(metric) {
  const tokens = metric.split(/[\s/\-.@]+|(?<=[a-z])(?=[A-Z])/).map((token) => token.toLowerCase());
  const words = new Set(tokens.flatMap((token) => [token, ...token.split("_")]));
  return !words.has("loss") && !words.has("error") && HIGHER_IS_BETTER.some((word) => words.has(word));
}

/**
 * Whether a column of numbers has its best value first in descending order: `eval/accuracy`, `best(eval/accuracy)`.
 *
 * @param {string} key
 */
export function isBestDescending(key) {
  const [, statistic, metric] = /^([a-z_]+)\((.*)\)$/s.exec(key) ?? [key, "last", key];
  return !statistic.endsWith("_step") && isHigherBetter(metric.replaceAll("`", ""));
}
