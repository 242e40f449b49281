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
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	patches, err := filepath.Glob("testdata/mutants/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	for _, patch := range patches {
		t.Run(strings.TrimSuffix(filepath.Base(patch), ".patch"), func(t *testing.T) {
			text, err := os.ReadFile(patch)
			if err != nil {
				t.Fatal(err)
			}
			claim := readClaim(t, string(text))
			overlay := writeOverlay(t, root, string(text))
			if claim.pkg != "" {
				t.Log(failTest(t, root, overlay, claim))
				return
			}
			t.Log(detect(t, buildMutant(t, overlay), claim.invariants))
		})
	}
}

// TestMutantsBuild checks that each patch applies to the current code and that the result
// builds. It is quick, so it runs with every change.
func TestMutantsBuild(t *testing.T) { //nolint:tparallel // Each build takes all cores.
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	patches, err := filepath.Glob("testdata/mutants/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	for _, patch := range patches {
		t.Run(strings.TrimSuffix(filepath.Base(patch), ".patch"), func(t *testing.T) {
			text, err := os.ReadFile(patch)
			if err != nil {
				t.Fatal(err)
			}
			if c := readClaim(t, string(text)); c.pkg != "" && !declares(t, filepath.Join(root, c.pkg), c.test) {
				t.Errorf("%s has no test %s", c.pkg, c.test)
			}
			args := []string{"build", "-overlay", writeOverlay(t, root, string(text))}
			for name := range apply(t, root, string(text)) {
				args = append(args, "./"+filepath.Dir(name))
			}
			build := exec.CommandContext(t.Context(), "go", args...)
			build.Dir = root
			if out, err := build.CombinedOutput(); err != nil {
				t.Errorf("the mutant does not build: %v\n%s", err, out)
			}
		})
	}
}

// claim is what the first line of a patch says: the invariants by which the simulation
// detects the defect, and the test that detects it, if one does instead.
type claim struct {
	invariants []string
	pkg, test  string
}

var (
	byInvariant = regexp.MustCompile(`^[^()]*\(([^)]+)\)\.`)
	byTest      = regexp.MustCompile(`Seen by: go test (\S+) -run (\w+)`)
)

func readClaim(t *testing.T, patch string) claim {
	t.Helper()
	head, _, _ := strings.Cut(patch, "\n")
	found := byInvariant.FindStringSubmatch(head)
	if found == nil {
		t.Fatalf("the patch names no invariant: %s", head)
	}
	c := claim{invariants: strings.Split(found[1], ", ")}
	if test := byTest.FindStringSubmatch(head); test != nil {
		c.pkg, c.test = test[1], test[2]
	}
	return c
}

// declares reports whether a test file of the folder has the test.
func declares(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), "\nfunc "+test+"(")
	})
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

// apply applies a unified diff, and returns the files that it changes. The lines that a
// hunk expects must occur exactly once. Line numbers are ignored, so that a patch still
// applies after changes elsewhere in the file.
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
				t.Fatalf("%s: a hunk matches %d times: update the patch:\n%s", name, n, before)
			}
			text = strings.Replace(text, before, after, 1)
		}
		files[name] = text
	}
	return files
}

// sides returns the text that a hunk expects, and the text that replaces it.
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
