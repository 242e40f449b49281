package main

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMarkup(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"One\nline.":             "<p>One line.</p>\n",
		"Two.\n\nParts.":         "<p>Two.</p>\n<p>Parts.</p>\n",
		"a <b> & `c<d>` e":       "<p>a &lt;b&gt; &amp; <code>c&lt;d&gt;</code> e</p>\n",
		"- one\n  more\n- `two`": "<ul>\n<li>one more</li>\n<li><code>two</code></li>\n</ul>\n",
	} {
		if diff := cmp.Diff(want, string(markup(text))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

// shape parses a document with one schema, A, and returns both.
func shape(t *testing.T, text string) (*document, *named[schema]) {
	t.Helper()
	parsed, err := parse([]byte("components:\n  schemas:\n    A: " + text + "\n    B: {type: string, example: b}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return parsed, &parsed.Components.Schemas[0]
}

func TestLimitsAreSaidInWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{type: string}": "",
		"{type: string, minLength: 1, maxLength: 128}":      "1 to 128 characters",
		"{type: string, maxLength: 8, pattern: '^a$'}":      "at most 8 characters; matches `^a$`",
		"{type: string, minLength: 2, maxLength: 2}":        "exactly 2 characters",
		"{type: number, minimum: 0.5, nullable: true}":      "at least 0.5; may be null",
		"{type: integer, default: 100, maximum: 1000}":      "at most 1000; `100` unless given",
		"{type: string, enum: [a, b]}":                      "one of `a`, `b`",
		"{type: array, maxItems: 3, items: {maxLength: 4}}": "at most 3 entries; each at most 4 characters",
	} {
		_, made := shape(t, text)
		if got := strings.Join(limitsOf(&made.Value), "; "); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestTypesAreSaidInWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]typeText{
		"{}":                               {Before: "any"},
		"{type: string, format: uri}":      {Before: "string, uri"},
		"{$ref: '#/components/schemas/B'}": {Link: "B"},
		"{allOf: [{$ref: '#/components/schemas/B'}]}":            {Link: "B"},
		"{type: array, items: {$ref: '#/components/schemas/B'}}": {Before: "list of ", Link: "B"},
		"{type: array, items: {type: string}}":                   {Before: "list of string"},
	} {
		_, made := shape(t, text)
		if diff := cmp.Diff(want, typeOf(&made.Value)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestExamplesAreMadeOfTheirParts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{type: string}":                                         "",
		"{type: string, example: <a>}":                           "<a>",
		"{type: string, enum: [a, b]}":                           "a",
		"{$ref: '#/components/schemas/B'}":                       "b",
		"{example: {z: 1, a: [x, null, 1.5, true]}}":             "{\n  \"z\": 1,\n  \"a\": [\n    \"x\",\n    null,\n    1.5,\n    true\n  ]\n}",
		"{type: array, items: {$ref: '#/components/schemas/B'}}": "[\n  \"b\"\n]",
		"{allOf: [{properties: {c: {example: 1}}}], properties: {b: {$ref: '#/components/schemas/B'}, d: {}}}": "{\n  \"c\": 1,\n  \"b\": \"b\"\n}",
		"{properties: {again: {$ref: '#/components/schemas/A'}}}":                                              "",
	} {
		parsed, made := shape(t, text)
		if got, err := parsed.shownExample(&made.Value); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestAnExampleThatIsNoJSONIsAnError(t *testing.T) {
	t.Parallel()
	parsed, made := shape(t, "{example: [.nan]}")
	if got, err := parsed.shownExample(&made.Value); err == nil {
		t.Errorf("it is shown as %s", got)
	}
}

func TestFieldsKeepTheirOrderAndSayWhetherTheyAreRequired(t *testing.T) {
	t.Parallel()
	parsed, made := shape(t, "{required: [z], properties: {z: {type: string, description: Z., example: e}, b: {$ref: '#/components/schemas/B'}}}")
	got, err := parsed.fieldsOf(&made.Value)
	want := []field{
		{Name: "z", Type: typeText{Before: "string"}, Required: true, Text: "Z.", Example: `"e"`},
		{Name: "b", Type: typeText{Link: "B"}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// luminance is the relative luminance of #rrggbb, WCAG 2.
func luminance(t *testing.T, color string) float64 {
	t.Helper()
	var sum float64
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		value, err := strconv.ParseUint(color[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		part := float64(value) / 255
		if part <= 0.04045 {
			sum += weight * part / 12.92
		} else {
			sum += weight * math.Pow((part+0.055)/1.055, 2.4)
		}
	}
	return sum
}

// Text contrasts with its background in both modes by at least 4.5 to 1, as WCAG 2 requires
// at level AA.
func TestColorsAreReadableInLightAndDark(t *testing.T) {
	t.Parallel()
	modes := regexp.MustCompile(`:root \{([^}]*)\}`).FindAllStringSubmatch(style, -1)
	if len(modes) != 2 {
		t.Fatalf("the style has %d modes", len(modes))
	}
	for i, mode := range modes {
		colors := map[string]string{}
		for _, found := range regexp.MustCompile(`--(\w+): (#[0-9a-f]{6});`).FindAllStringSubmatch(mode[1], -1) {
			colors[found[1]] = found[2]
		}
		for _, text := range []string{"text", "soft", "link", "mark"} {
			for _, behind := range []string{"ground", "code"} {
				a, b := luminance(t, colors[text]), luminance(t, colors[behind])
				if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 4.5 {
					t.Errorf("mode %d: %s on %s has a contrast of %.1f", i, text, behind, ratio)
				}
			}
		}
	}
}
