//go:build mutants

package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mutantSeeds is how many seeds a mutant may survive.
const mutantSeeds = 12000

// TestMutants breaks the code on purpose, in one way after the other, and
// expects the simulation to see each: an invariant that nothing can trip proves
// nothing. The broken files lie beside the tree, never in it. A test of this
// name is run by `make mutants`; -run TestMutants/<name> runs one.
func TestMutants(t *testing.T) { //nolint:paralleltest // One build at a time is enough for a machine.
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	patches, err := filepath.Glob("testdata/mutants/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	for _, patch := range patches {
		t.Run(strings.TrimSuffix(filepath.Base(patch), ".patch"), func(t *testing.T) { //nolint:paralleltest // See above.
			program := buildMutant(t, root, patch)
			t.Log(survive(t, program))
		})
	}
}

// buildMutant builds this test with the patch applied, and returns the program.
func buildMutant(t *testing.T, root, patch string) string {
	t.Helper()
	text, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay := map[string]map[string]string{"Replace": {}}
	for name, content := range apply(t, root, string(text)) {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][filepath.Join(root, name)] = file
	}
	encoded, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	if err := os.WriteFile(list, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", list, "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not build: %v\n%s", err, out)
	}
	return program
}

// failure is how the simulation tells of a seed.
var failure = regexp.MustCompile(`seed (\d+):\n(.*)`)

// survive runs the mutant until it is seen, and says how soon that was.
func survive(t *testing.T, program string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	run := exec.CommandContext(ctx, program, "-test.run", "^TestSim$", "-test.timeout", "10m",
		"-sim.stop", fmt.Sprint("-sim.seeds=", mutantSeeds))
	out, err := run.CombinedOutput()
	if err == nil {
		t.Fatalf("survived %d seeds", mutantSeeds)
	}
	seen := failure.FindSubmatch(out)
	if seen == nil {
		return "seen by a crash: " + string(out[:min(len(out), 300)])
	}
	return fmt.Sprintf("seen at seed %s: %.160s", seen[1], seen[2])
}

// apply applies a unified diff, and returns the files that it changes. What a
// hunk takes away must be there once; line numbers are not looked at, so a patch
// survives what happens elsewhere in its file.
func apply(t *testing.T, root, patch string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, part := range strings.Split(patch, "\n--- a/")[1:] {
		name, hunks, _ := strings.Cut(part, "\n")
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		for _, hunk := range strings.Split(hunks, "\n@@ ")[1:] {
			before, after := sides(hunk)
			if n := strings.Count(text, before); n != 1 {
				t.Fatalf("%s: a hunk fits %d times, bring the patch up to date:\n%s", name, n, before)
			}
			text = strings.Replace(text, before, after, 1)
		}
		files[name] = text
	}
	return files
}

// sides are the text that a hunk expects and the one that it leaves.
func sides(hunk string) (before, after string) {
	var old, now strings.Builder
	_, body, _ := strings.Cut(hunk, "\n")
	for line := range strings.Lines(body) {
		switch line[0] {
		case '-':
			old.WriteString(line[1:])
		case '+':
			now.WriteString(line[1:])
		default:
			old.WriteString(line[1:])
			now.WriteString(line[1:])
		}
	}
	return strings.TrimSuffix(old.String(), "\n"), strings.TrimSuffix(now.String(), "\n")
}
