// Holds an OpenAPI document against the rules of two linters, Spectral's spectral:oas and
// Redocly's recommended, and exits with 1 if it breaks one. Use: node lint.js openapi.yaml
// It calls the linters as libraries: their command lines send telemetry, look for updates
// and are four times as large.
import { readFileSync } from "node:fs";
import { createConfig, lintFromString } from "@redocly/openapi-core";
import parsers from "@stoplight/spectral-parsers";
import rulesets from "@stoplight/spectral-rulesets";
import spectral from "@stoplight/spectral-core";

const file = process.argv[2];
const source = readFileSync(file, "utf8");

const linter = new spectral.Spectral();
linter.setRuleset({
  extends: rulesets.oas,
  rules: {
    "info-contact": "off", // The project has no address for questions.
    "operation-description": "off", // Where the summary says it all, there is none.
  },
});
const found = [];
for (const { range, message, code } of await linter.run(new spectral.Document(source, parsers.Yaml, file))) {
  found.push(`${file}:${range.start.line + 1}: ${message} (spectral ${code})`);
}

const config = await createConfig({
  extends: ["recommended"],
  rules: { "operation-4xx-response": "off" }, // Probes and the document itself refuse nothing.
});
for (const { location, message, ruleId } of await lintFromString({ source, absoluteRef: file, config })) {
  found.push(`${file}: ${location[0].pointer}: ${message} (redocly ${ruleId})`);
}

for (const line of found) {
  console.log(line);
}
process.exitCode = found.length > 0 ? 1 : 0;
