package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

const contract = "../../api/openapi.yaml"

// rendered is the page of the contract.
func rendered(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(contract)
	if err != nil {
		t.Fatal(err)
	}
	page, err := render(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func TestThePageIsTheOneThatIsServed(t *testing.T) {
	t.Parallel()
	served, err := os.ReadFile("../../api/docs.gen.html")
	if err != nil {
		t.Fatal(err)
	}
	if rendered(t) != string(served) {
		t.Error("api/docs.gen.html is stale: run go generate ./api")
	}
}

func TestThePageShowsAllOfTheContract(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(contract)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	page := rendered(t)
	var want []string
	for _, rule := range auth.Rules() {
		want = append(want, `<h3 id="`+rule.Operation+`">`, "<code>"+rule.Path+"</code>")
	}
	for _, each := range apierror.Codes() {
		want = append(want, fmt.Sprintf("<code>%s</code></td><td>%d</td>", each, each.Status()))
	}
	for _, each := range parsed.Components.Schemas {
		want = append(want, `<h3 id="schema-`+each.Name+`">`)
		for _, property := range each.Value.Properties {
			want = append(want, "<code>"+property.Name+"</code>")
		}
	}
	for _, tag := range parsed.Tags {
		want = append(want, `<h2 id="tag-`+tag.Name+`">`)
	}
	for _, text := range want {
		if !strings.Contains(page, text) {
			t.Errorf("the page has no %s", text)
		}
	}
	if len(parsed.Paths) < 40 || len(parsed.Components.Schemas) < 40 {
		t.Errorf("%d paths and %d schemas were read", len(parsed.Paths), len(parsed.Components.Schemas))
	}
}

// A reader without a mouse uses links, headings and regions: each leads
// somewhere, and no two have one name.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	page := rendered(t)
	ids := map[string]bool{}
	for _, found := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if ids[found[1]] {
			t.Errorf("two elements have the id %s", found[1])
		}
		ids[found[1]] = true
	}
	for _, found := range regexp.MustCompile(` (?:href="#|aria-labelledby=")([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if !ids[found[1]] {
			t.Errorf("nothing has the id %s", found[1])
		}
	}
	labels := map[string]bool{}
	for _, found := range regexp.MustCompile(` aria-label="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		if labels[found[1]] {
			t.Errorf("two regions are called %s", found[1])
		}
		labels[found[1]] = true
	}
	if first := regexp.MustCompile(`<a [^>]*>`).FindString(page); first != `<a class="skip" href="#content">` {
		t.Errorf("the first link is %s, and not the one to the content", first)
	}
}

func TestElementsAreClosed(t *testing.T) {
	t.Parallel()
	void := []string{"meta", "!DOCTYPE"}
	var open []string
	for _, tag := range regexp.MustCompile(`<(/?)([A-Za-z!][A-Za-z0-9]*)[^>]*>`).FindAllStringSubmatch(rendered(t), -1) {
		switch {
		case slices.Contains(void, tag[2]):
		case tag[1] == "":
			open = append(open, tag[2])
		case len(open) == 0 || open[len(open)-1] != tag[2]:
			t.Fatalf("%s closes %v", tag[0], open)
		default:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("%v are not closed", open)
	}
}

func TestRunSaysWhatItCouldNotDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	to := filepath.Join(dir, "page.html")
	if err := run(filepath.Join(dir, "none.yaml"), to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a document: %v", err)
	}
	if err := run(contract, filepath.Join(dir, "none", "page.html")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	if err := run(contract, to); err != nil {
		t.Error(err)
	}
	if page, err := os.ReadFile(to); err != nil || string(page) != rendered(t) {
		t.Errorf("%d bytes were written, %v", len(page), err)
	}
}

func TestADocumentThatLacksSomethingIsRefused(t *testing.T) {
	t.Parallel()
	const tags = "tags: [{name: jobs, description: Jobs.}]\n"
	for want, text := range map[string]string{
		"read the document":       "paths: [",
		"no rule in package auth": tags + "paths: {/nowhere: {get: {operationId: nothing, tags: [jobs]}}}",
		"no tag":                  "paths: {/healthz: {get: {operationId: getHealth, tags: [jobs]}}}",
		"there is no #/components/parameters/Nothing": tags +
			"paths: {/healthz: {parameters: [{$ref: '#/components/parameters/Nothing'}], get: {operationId: getHealth, tags: [jobs]}}}",
		"there is no #/components/requestBodies/Nothing": tags +
			"paths: {/healthz: {get: {operationId: getHealth, tags: [jobs], requestBody: {$ref: '#/components/requestBodies/Nothing'}}}}",
		"there is no #/components/responses/Nothing": tags +
			"paths: {/healthz: {get: {operationId: getHealth, tags: [jobs], responses: {'200': {$ref: '#/components/responses/Nothing'}}}}}",
		"there is no #/components/headers/Nothing": tags +
			"paths: {/healthz: {get: {operationId: getHealth, tags: [jobs], responses: {'200': {headers: {A: {$ref: '#/components/headers/Nothing'}}}}}}}",
		"has 2 media types": tags +
			"paths: {/healthz: {get: {operationId: getHealth, tags: [jobs], requestBody: {content: {a/b: {}, c/d: {}}}}}}",
		"schema Whole: there is no #/components/schemas/Part": "components: {schemas: {Whole: {allOf: [{$ref: '#/components/schemas/Part'}]}}}",
	} {
		if _, err := render([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
