// The page that compares selected runs.

import { showComparison } from "./comparison.js";

showComparison();
