//go:build sdk

package conformance_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/lucius-project/lucius/api"
)

var update = flag.Bool("update", false, "write the table of operations")

// operation is one of the OpenAPI document.
type operation struct {
	id, method string
	path       *regexp.Regexp
	changes    bool
}

var parameter = regexp.MustCompile(`\\\{\w+\\\}`)

func operations(t *testing.T) (all []operation) {
	t.Helper()
	var document struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(api.Spec(), &document); err != nil {
		t.Fatal(err)
	}
	for path, methods := range document.Paths {
		pattern := regexp.MustCompile("^" + parameter.ReplaceAllString(regexp.QuoteMeta(path), "[^/:]+") + "$")
		for method, node := range methods {
			described, ok := node.(map[string]any)
			if !ok { // The parameters that all methods have.
				continue
			}
			id, _ := described["operationId"].(string)
			all = append(all, operation{id, strings.ToUpper(method), pattern, method != "get"})
		}
	}
	return all
}

// TestClients runs the story of the README in each language, and compares the table of
// operations with those that the story and its worker used; -update writes it.
func TestClients(t *testing.T) {
	t.Parallel()
	all := operations(t)
	used := make([]map[string]bool, len(sdks))
	var stories sync.WaitGroup
	for i, sdk := range sdks {
		stories.Go(func() {
			t.Run(sdk.name, func(t *testing.T) {
				sdk.present(t)
				used[i] = story(t, sdk, all)
			})
		})
	}
	stories.Wait()
	const file, begin, end = "../README.md", "<!-- operations -->\n", "<!-- end of operations -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), begin)
	_, after, found := strings.Cut(rest, end)
	if !found {
		t.Fatalf("%s has no place for the table", file)
	}
	want := before + begin + table(used) + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if !t.Failed() && string(text) != want {
		t.Errorf("%s is stale: go test -tags sdk ./sdk/conformance -run TestClients -update", file)
	}
}

// misspelt is what the clients say of a payload that has the key wrods instead of words, in a command
// and in a rerun.
const misspelt = "the server answered 422 payload_invalid: /payload/words is required. There are 2 violations in all.; " +
	"/payload/words: is required; /payload/wrods: is not allowed here"

// story runs the SDK's client, and returns the operations that it used. The first answer
// of every operation that changes something is lost.
func story(t *testing.T, sdk *sdk, all []operation) map[string]bool {
	t.Helper()
	// No lease ends in the story, but it hears of a cancellation with the next heartbeat, after a third of one.
	site := newSite(t, "--lease-duration", "30s", "--ack-timeout", "1m")
	used := map[string]bool{}
	site.proxy.lose = func(method, path string) bool {
		for _, o := range all {
			if o.method == method && o.path.MatchString(path) {
				id := o.id
				if id == "completeWorkBatch" { // Two tasks may happen to end at the same time.
					id = "completeWork"
				}
				first := !used[id]
				used[id] = true
				return first && o.changes
			}
		}
		t.Errorf("%s %s is no operation", method, path)
		return false
	}
	cmd := exec.CommandContext(t.Context(), sdk.client[0], sdk.client[1:]...)
	cmd.Dir = sdk.dir
	cmd.Env = append(os.Environ(), "LUCIUS_URL="+site.proxy.url, "LUCIUS_TOKEN=", "LUCIUS_TOKEN_FILE=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(sdk.client, " "), err, out)
	}
	for _, what := range []string{"misspelt", "wrong patch"} {
		if err == nil && !strings.Contains(string(out), what+": "+misspelt+"\n") {
			t.Errorf("%s does not say %q of a %s, but:\n%s", sdk.name, misspelt, what, out)
		}
	}
	site.audit()
	return used
}

// table has a row for each operation that an SDK used.
func table(used []map[string]bool) string {
	every := map[string]bool{}
	head, line := "| operation |", "|---|"
	for i, sdk := range sdks {
		maps.Copy(every, used[i])
		head += " " + sdk.name + " |"
		line += "---|"
	}
	rows := []string{head, line}
	for _, id := range slices.Sorted(maps.Keys(every)) {
		row := fmt.Sprintf("| `%s` |", id)
		for _, by := range used {
			mark := "no"
			if by[id] {
				mark = "yes"
			}
			row += " " + mark + " |"
		}
		rows = append(rows, row)
	}
	return strings.Join(rows, "\n") + "\n"
}
