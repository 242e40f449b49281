package lucius_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What a reader copies from the README compiles: it stands in a file of the examples.
func TestTheReadmeShowsTheExamples(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("examples/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, name := range append(files, "example_test.go", "luciustest/luciustest_test.go") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) < 3 {
		t.Fatalf("the README shows %d pieces of Go", len(blocks))
	}
	unindented := regexp.MustCompile(`(?m)^\t+`).ReplaceAllString
	for _, block := range blocks {
		if !strings.Contains(unindented(code.String(), ""), unindented(string(block[1]), "")) {
			t.Errorf("no example has this:\n%s", block[1])
		}
	}
}
