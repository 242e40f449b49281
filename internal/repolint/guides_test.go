package repolint_test

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/guides"
)

// documents returns the documents of the repository.
func documents(t *testing.T) []file {
	t.Helper()
	return slices.DeleteFunc(readTree(t), func(f file) bool { return path.Ext(f.path) != ".md" })
}

// Each block of a document runs, is part of a tested file, or says why not.
func TestDocuments_SayHowTheirBlocksAreChecked(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, d := range documents(t) {
		blocks, err := guides.Parse(string(d.text))
		if err != nil {
			t.Errorf("%s: %v", d.path, err)
		}
		for _, block := range blocks {
			if block.Verb == guides.Run || block.Verb == guides.Serve {
				ran++
			}
			if block.Language == "sh" && commentInComment.MatchString(block.Text) {
				t.Errorf("%s:%d: a comment contains the next command:\n%s", d.path, block.Line, block.Text)
			}
			if block.Verb != guides.PartOf {
				continue
			}
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(block.Argument)))
			if err != nil || !block.IsIn(string(text)) {
				t.Errorf("%s:%d: this is no part of %s (%v):\n%s", d.path, block.Line, block.Argument, err, block.Text)
			}
		}
	}
	if ran < 20 {
		t.Errorf("%d blocks run in all", ran)
	}
}

// commentInComment matches a shell line whose comment has a comment of its own, as when two
// lines were joined: the second command would not run.
var commentInComment = regexp.MustCompile(`(?m) # .* # `)

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	link      = regexp.MustCompile(`\]\(([^)\s]*)\)`)
	runbook   = regexp.MustCompile(`(?m)^ +runbook_url: (\S+)$`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	// noAnchor matches the characters that a heading's anchor leaves out.
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Each link leads to a file of the project, and to one of its headings if it names one. Each
// alert has such a link, from the root.
func TestDocuments_LinkToExistingPages(t *testing.T) {
	t.Parallel()
	anchors := map[string]bool{} // path#anchor
	all := documents(t)
	for _, d := range all {
		for _, found := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(d.text), ""), -1) {
			anchors[d.path+"#"+strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-")] = true
		}
	}
	check := func(from, base, ref string) {
		name, anchor, _ := strings.Cut(ref, "#")
		if strings.Contains(name, "://") {
			return
		}
		target := from
		if name != "" {
			target = path.Join(base, name)
		}
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(target))); err != nil {
			t.Errorf("%s links to %s: %v", from, ref, err)
		} else if anchor != "" && !anchors[target+"#"+anchor] {
			t.Errorf("%s links to %s, which has no such heading", from, ref)
		}
	}
	for _, d := range all {
		for _, found := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(d.text), ""), -1) {
			check(d.path, path.Dir(d.path), found[1])
		}
	}
	rules, err := os.ReadFile(filepath.Join(root, "deploy/observability/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := runbook.FindAllSubmatch(rules, -1)
	if alerts := bytes.Count(rules, []byte("- alert: ")); len(found) != alerts {
		t.Errorf("of %d alerts %d have a runbook_url", alerts, len(found))
	}
	for _, one := range found {
		check("deploy/observability/alerts.yaml", ".", string(one[1]))
	}
}
