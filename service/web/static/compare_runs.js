// The page that compares selected runs.

import { showComparison } from "./compare.js";

showComparison();
