//go:build mutants

package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mutantSeeds is how many seeds a mutant is tested with.
const mutantSeeds = 12000

// TestMutants applies one patch after the other to the code, and expects the simulation to
// detect each defect by an invariant that the patch names: an invariant that no defect
// violates proves nothing. If a defect needs too rare a coincidence, its patch names a test
// instead. The patched files are outside of the tree. `make mutants` runs this test; -run
// TestMutants/<name> runs one patch.
func TestMutants(t *testing.T) { //nolint:paralleltest // One build keeps the machine busy.
	root, patches := mutantPatches(t)
	for _, name := range slices.Sorted(maps.Keys(patches)) {
		t.Run(name, func(t *testing.T) {
			claim := readClaim(t, patches[name])
			overlay := writeOverlay(t, root, patches[name])
			if claim.pkg != "" {
				t.Log(failTest(t, root, overlay, claim))
				return
			}
			t.Log(detect(t, buildMutant(t, overlay), claim.invariants))
		})
	}
}

// writeOverlay writes the patched files, and returns the file for the -overlay flag of the go
// command that lists them.
func writeOverlay(t *testing.T, root, patch string) (list string) {
	t.Helper()
	dir := t.TempDir()
	overlay := map[string]map[string]string{"Replace": {}}
	for name, content := range apply(t, root, patch) {
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
	list = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	return list
}

// buildMutant builds this test with the overlay, and returns the path of the program.
func buildMutant(t *testing.T, overlay string) string {
	t.Helper()
	program := filepath.Join(filepath.Dir(overlay), "sim.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not build: %v\n%s", err, out)
	}
	return program
}

// failTest expects the test that the patch names to fail.
func failTest(t *testing.T, root, overlay string, c claim) string {
	t.Helper()
	run := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-count=1", "-overlay", overlay, "-run", c.test, c.pkg)
	run.Dir = root
	out, err := run.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--- FAIL: "+c.test) {
		t.Fatalf("%s of %s does not detect the defect: %v\n%s", c.test, c.pkg, err, out)
	}
	return "detected by " + c.test
}

// failure matches the report of a failed seed, and violated the name of an invariant in it.
var (
	failure  = regexp.MustCompile(`seed (\d+):\n((?:[ \t]*\S.*\n)+)`)
	violated = regexp.MustCompile(`(?m)^\s*(?:audit: (?:violation|late) )?([\w -]+):`)
)

// detect runs the mutant until the simulation detects it, and returns the seed and the
// invariant.
func detect(t *testing.T, program string, invariants []string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	run := exec.CommandContext(ctx, program, "-test.run", "^TestSim$", "-test.timeout", "30m",
		"-sim.stop", fmt.Sprint("-sim.seeds=", mutantSeeds))
	out, err := run.CombinedOutput()
	if err == nil || strings.Contains(string(out), "panic: test timed out") {
		t.Fatalf("the mutant survived %d seeds, or the time limit ended the run", mutantSeeds)
	}
	seeds := failure.FindAllStringSubmatch(string(out), -1)
	if seeds == nil {
		return "detected by a crash: " + string(out[:min(len(out), 300)])
	}
	for _, seen := range seeds {
		for _, name := range violated.FindAllStringSubmatch(seen[2], -1) {
			if slices.Contains(invariants, name[1]) {
				return fmt.Sprintf("detected at seed %s by %s: %.160s", seen[1], name[1], strings.TrimSpace(seen[2]))
			}
		}
	}
	t.Fatalf("detected, but not by %q: %s", invariants, seeds[0][2])
	return ""
}
