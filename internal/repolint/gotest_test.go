package repolint_test

import (
	"go/build/constraint"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// goTest matches the arguments of go test in a document, up to the end of the code or a comment.
var goTest = regexp.MustCompile("\\bgo test ([^`\n#]*)")

// testRun is what a command of go test runs.
type testRun struct {
	packages []string // directories, or patterns that end in /...
	tags     []string
	tests    []string // the alternatives of -run; one that is empty without it
	flags    []string // those that the tests define
}

// parseTestRun reads the arguments of go test.
func parseTestRun(arguments string) testRun {
	run := testRun{tests: []string{""}}
	words := strings.Fields(strings.NewReplacer("'", "", `\|`, "|", "…", "...", "-->", "").Replace(arguments))
	for i, word := range words {
		name, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if !joined && i+1 < len(words) {
			value = words[i+1]
		}
		switch {
		case strings.HasPrefix(word, "./"):
			run.packages = append(run.packages, strings.TrimPrefix(word, "./"))
		case !strings.HasPrefix(word, "-"): // the value of a flag
		case name == "race":
			run.tags = append(run.tags, "race")
		case name == "tags":
			run.tags = append(run.tags, strings.Split(value, ",")...)
		case name == "run":
			tests, _, _ := strings.Cut(value, "/") // Subtests have no declaration.
			run.tests = strings.Split(tests, "|")
		case !slices.Contains([]string{"bench", "count", "shuffle", "timeout", "v"}, name):
			run.flags = append(run.flags, name)
		}
	}
	return run
}

// builds reports whether the command compiles the test file.
func (r testRun) builds(f file) bool {
	in := func(pattern string) bool {
		parent, below := strings.CutSuffix(pattern, "/...")
		return f.dir() == parent || below && strings.HasPrefix(f.dir(), parent+"/")
	}
	if !f.isTest() || !slices.ContainsFunc(r.packages, in) {
		return false
	}
	expression, err := constraint.Parse(string(buildConstraint.Find(f.text))) // It fails if there is none.
	return err != nil || expression.Eval(func(tag string) bool {
		return slices.Contains(r.tags, tag) || tag != "race" && slices.Contains(platformTags, tag)
	})
}

// missing returns the arguments for which no test file that the command compiles has a test or flag.
func (r testRun) missing(files []file) (arguments []string) {
	files = slices.DeleteFunc(slices.Clone(files), func(f file) bool { return !r.builds(f) })
	for _, pattern := range r.tests {
		named := regexp.MustCompile(pattern)
		declares := func(f file) bool {
			return slices.ContainsFunc(testDeclaration.FindAllSubmatch(f.text, -1), func(found [][]byte) bool { return named.Match(found[1]) })
		}
		if pattern != "^$" && !slices.ContainsFunc(files, declares) { // ^$ runs benchmarks alone.
			arguments = append(arguments, "-run "+pattern)
		}
	}
	for _, name := range r.flags {
		defined := regexp.MustCompile(`flag\.\w+\("` + regexp.QuoteMeta(name) + `"`)
		if !slices.ContainsFunc(files, func(f file) bool { return defined.Match(f.text) }) {
			arguments = append(arguments, "-"+name)
		}
	}
	return arguments
}

// Each go test in a document runs a test: go test says ok too if no test matches -run, or if build
// constraints leave out all that do.
func TestDocuments_RunExistingTests(t *testing.T) {
	t.Parallel()
	files := readTree(t)
	checked := 0
	for _, d := range documents(t) {
		for _, found := range goTest.FindAllStringSubmatch(string(d.text), -1) {
			run := parseTestRun(found[1])
			if len(run.packages) == 0 { // Those of a reader's project, or a sentence about go test.
				continue
			}
			checked++
			for _, argument := range run.missing(files) {
				t.Errorf("%s: %q runs no test with %s", d.path, found[0], argument)
			}
		}
	}
	if checked < 20 {
		t.Errorf("%d commands in all", checked)
	}
}

func TestCommandsOfGoTestAreHeldToTheirPackages(t *testing.T) {
	t.Parallel()
	files := []file{
		{path: "pkg/a/a_test.go", text: []byte("func TestAll(t *testing.T) {")},
		{path: "pkg/a/b/b_test.go", text: []byte("//go:build integration && !race\n\nvar u = flag.Bool(\"update\", false, \"\")\n\nfunc TestDisk(")},
		{path: "pkg/a/c/c.go", text: []byte("package c")},
	}
	for arguments, want := range map[string]string{
		"-race ./pkg/a -run All":                      "",
		"./pkg/a -run 'All|Disk'":                     "-run Disk",
		"./pkg/a/... -run Disk":                       "-run Disk",
		"-tags integration ./pkg/a/... -run='Disk'":   "",
		"-race -tags integration ./pkg/a/b -run Disk": "-run Disk",
		"-tags x,integration ./pkg/a/b -update -->":   "",
		"./pkg/a -run TestAll/case -count 1 -update":  "-update",
		"./pkg/a/c":                 "-run ",
		"./pkg/… -run=^$ -bench=.":  "",
		"-tags integration ./pkg/a": "",
	} {
		if got := strings.Join(parseTestRun(arguments).missing(files), ", "); got != want {
			t.Errorf("%s: %q, want %q", arguments, got, want)
		}
	}
}
