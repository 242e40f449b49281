package commands

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/routing"
)

// presence says whether a field may be absent.
type presence bool

const (
	required presence = true
	optional presence = false
)

// present returns the field's value, or false if it is absent or null.
func (d *decoder) present(name string, need presence) (any, bool) {
	value := d.fields[name]
	if value == nil && need == required {
		d.fail(problem.InvalidEnvelope, "/"+name, "is required")
	}
	return value, value != nil
}

// text reads an id or another short text.
func (d *decoder) text(name string, limit int, need presence) string {
	value, ok := d.present(name, need)
	if !ok {
		return ""
	}
	text, ok := value.(string)
	if !ok {
		d.fail(problem.InvalidEnvelope, "/"+name, "must be a string, not %s", describe(value))
		return ""
	}
	d.checkText("/"+name, text, limit)
	return text
}

// checkText applies the rules of ids and short texts.
func (d *decoder) checkText(pointer, text string, limit int) {
	switch {
	case strings.TrimSpace(text) == "":
		d.fail(problem.InvalidEnvelope, pointer, "must not be empty or blank")
	case len(text) > limit:
		d.tooLong(pointer, len(text), limit)
	case strings.ContainsFunc(text, unicode.IsControl):
		d.fail(problem.InvalidEnvelope, pointer, "must not contain control characters")
	case !utf8.ValidString(text): // of a header; a body that is not UTF-8 is refused whole
		d.fail(problem.InvalidEnvelope, pointer, "must be UTF-8")
	}
}

// tooLong records a value that exceeds its limit, both in bytes.
func (d *decoder) tooLong(pointer string, size, limit int) {
	d.fail(problem.TooLarge, pointer, "is %d bytes long; at most %d are allowed", size, limit)
}

// mode reads the mode.
func (d *decoder) mode() routing.Mode {
	value, ok := d.present("mode", optional)
	if !ok {
		return ""
	}
	text, _ := value.(string)
	mode := routing.Mode(text)
	if !mode.Valid() {
		d.fail(problem.InvalidEnvelope, "/mode", "must be %q or %q", routing.Default, routing.Burst)
		return ""
	}
	return mode
}

// payload reads the payload, verbatim and as a tree.
func (d *decoder) payload() (json.RawMessage, map[string]any) {
	value, ok := d.present("payload", required)
	if !ok {
		return nil, nil
	}
	tree, ok := value.(map[string]any)
	if !ok {
		d.fail(problem.InvalidEnvelope, "/payload", "must be an object, not %s", describe(value))
		return nil, nil
	}
	text := d.texts["payload"]
	if limit := d.policy.maxPayload(); len(text) > limit {
		d.tooLong("/payload", len(text), limit)
	}
	return text, tree
}

// ref reads a reference: an object that is opaque except for its uri.
func (d *decoder) ref(name string, need presence) json.RawMessage {
	value, ok := d.present(name, need)
	if !ok {
		return nil
	}
	object, ok := value.(map[string]any)
	if !ok {
		d.fail(problem.InvalidEnvelope, "/"+name, "must be an object, not %s", describe(value))
		return nil
	}
	text := d.texts[name]
	if len(text) > MaxRef {
		d.tooLong("/"+name, len(text), MaxRef)
	}
	d.checkURI("/"+name+"/uri", object["uri"])
	return text
}

// checkURI applies the rules of a reference's uri.
func (d *decoder) checkURI(pointer string, value any) {
	uri, ok := value.(string)
	switch {
	case value == nil:
		d.fail(problem.RefInvalid, pointer, "is required")
	case !ok:
		d.fail(problem.RefInvalid, pointer, "must be a string, not %s", describe(value))
	case strings.TrimSpace(uri) == "":
		d.fail(problem.RefInvalid, pointer, "must not be empty or blank")
	case len(uri) > MaxURI:
		d.tooLong(pointer, len(uri), MaxURI)
	case strings.ContainsFunc(uri, unicode.IsControl):
		d.fail(problem.RefInvalid, pointer, "must not contain control characters")
	case !d.policy.allows(uri):
		d.fail(problem.RefInvalid, pointer, "has a scheme or prefix that is not allowed here")
	}
}

// callbackURLs reads the list of webhook URLs.
func (d *decoder) callbackURLs() []string {
	value, ok := d.present("callback_urls", optional)
	if !ok {
		return nil
	}
	list, ok := value.([]any)
	if !ok {
		d.fail(problem.InvalidEnvelope, "/callback_urls", "must be an array, not %s", describe(value))
		return nil
	}
	if len(list) > MaxCallbackURLs {
		d.fail(problem.TooLarge, "/callback_urls", "has %d entries; at most %d are allowed", len(list), MaxCallbackURLs)
		return nil
	}
	urls := make([]string, 0, len(list))
	for i, entry := range list {
		urls = append(urls, d.callbackURL(fmt.Sprintf("/callback_urls/%d", i), entry))
	}
	return urls
}

// callbackURL reads one webhook URL. The sender checks again whether it may call the
// URL, because a name may resolve differently by then.
func (d *decoder) callbackURL(pointer string, value any) string {
	text, ok := value.(string)
	if !ok {
		d.fail(problem.InvalidEnvelope, pointer, "must be a string, not %s", describe(value))
		return ""
	}
	if len(text) > MaxCallbackURL {
		d.tooLong(pointer, len(text), MaxCallbackURL)
		return ""
	}
	if fault := d.policy.callbackFault(text); fault != "" {
		d.fail(problem.InvalidEnvelope, pointer, "%s", fault)
	}
	return text
}

// describe names the type of a value of a parsed tree.
func describe(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "an array"
	default:
		return "an object"
	}
}
