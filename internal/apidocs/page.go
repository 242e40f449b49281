package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

//go:embed page.html.tmpl
var layoutText string

//go:embed page.css
var style string

// layout is the page's template.
var layout = template.Must(template.New("page").Funcs(template.FuncMap{
	"markup": markup, "inline": inline,
	"style": func() template.CSS { return template.CSS(style) }, //nolint:gosec // It is a file of this package.
}).Parse(layoutText))

// page is the template's data.
type page struct {
	Title, Version, Text string
	Groups               []group
	Schemas              []schemaView
	Codes                []code
}

// group is the operations of one tag.
type group struct {
	Name, Text string
	Operations []operationView
}

type operationView struct {
	ID, Method, Path, Summary, Text string
	Access                          string
	Parameters                      []field
	Request                         *bodyView
	Responses                       []responseView
	Samples                         []sample
}

type bodyView struct {
	Media    string
	Text     string
	Required bool
	Type     typeText
	Example  string
}

type responseView struct {
	Status, Text string
	Bodies       []bodyView
	Headers      []field
}

type schemaView struct {
	Name, Text string
	Type       typeText
	Fields     []field
	Limits     []string
	Strict     bool
	Example    string
}

// code is a problem code.
type code struct {
	Name, Title string
	Status      int
}

// view returns the page of a document. The error names what is missing in the document.
func view(d *document) (*page, error) {
	made := &page{Title: d.Info.Title, Version: d.Info.Version, Text: d.Info.Description}
	for _, tag := range d.Tags {
		made.Groups = append(made.Groups, group{Name: tag.Name, Text: tag.Description})
	}
	for _, path := range d.Paths {
		for _, each := range []named[*operation]{
			{"GET", path.Value.Get}, {"PUT", path.Value.Put}, {"POST", path.Value.Post}, {"DELETE", path.Value.Delete},
		} {
			if each.Value == nil {
				continue
			}
			if err := made.add(d, each.Name, path.Name, &path.Value, each.Value); err != nil {
				return nil, fmt.Errorf("%s %s: %w", each.Name, path.Name, err)
			}
		}
	}
	for i := range d.Components.Schemas {
		shown, err := d.schemaView(&d.Components.Schemas[i])
		if err != nil {
			return nil, fmt.Errorf("schema %s: %w", d.Components.Schemas[i].Name, err)
		}
		made.Schemas = append(made.Schemas, shown)
	}
	for _, each := range apierror.Codes() {
		made.Codes = append(made.Codes, code{string(each), each.Title(), each.Status()})
	}
	return made, nil
}

// add adds an operation to the group of its tag.
func (p *page) add(d *document, method, path string, item *pathItem, o *operation) error {
	rule, known := auth.RuleFor(method, path)
	if !known {
		return fmt.Errorf("%s has no rule in package auth", o.ID)
	}
	shown := operationView{
		ID: o.ID, Method: method, Path: path, Summary: o.Summary, Text: o.Description, Access: accessText(&rule),
	}
	var err error
	if shown.Parameters, err = d.parameters(slices.Concat(item.Parameters, o.Parameters)); err != nil {
		return err
	}
	if shown.Request, err = d.request(o.RequestBody); err != nil {
		return err
	}
	if shown.Responses, err = d.responses(o.Responses); err != nil {
		return err
	}
	shown.Samples = samples(method, path, shown.Parameters, shown.Request)
	at := slices.IndexFunc(p.Groups, func(g group) bool { return slices.Contains(o.Tags, g.Name) })
	if at < 0 {
		return fmt.Errorf("%s has no tag that the document describes", o.ID)
	}
	p.Groups[at].Operations = append(p.Groups[at].Operations, shown)
	return nil
}

// scopes describes the scopes of rules.
var scopes = map[auth.Scope]string{
	auth.Anywhere:   "for any tenant",
	auth.Named:      "for the tenant that the request names, or for all tenants if it names none",
	auth.Owned:      "for the object's tenant: foreign objects are answered as missing",
	auth.Narrowed:   "for any tenant: it covers only the caller's tenants",
	auth.Everywhere: "for all tenants",
}

// accessText says who may call an operation.
func accessText(rule *auth.Rule) string {
	if rule.Scope == auth.Public {
		return "Anyone, without a credential."
	}
	roles := make([]string, len(rule.Roles))
	for i, role := range rule.Roles {
		roles[i] = "`" + string(role) + "`"
	}
	text := "Role " + strings.Join(roles, " or ") + ", " + scopes[rule.Scope] + "."
	if rule.Audited {
		text += " Each call is in the audit log."
	}
	return text
}

// markup turns the little of CommonMark that the document uses into HTML:
// paragraphs, lists and code between backticks.
func markup(text string) template.HTML {
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if items, ok := strings.CutPrefix(strings.TrimSpace(block), "- "); ok {
			out.WriteString("<ul>\n")
			for item := range strings.SplitSeq(items, "\n- ") {
				out.WriteString("<li>" + string(inline(item)) + "</li>\n")
			}
			out.WriteString("</ul>\n")
			continue
		}
		out.WriteString("<p>" + string(inline(block)) + "</p>\n")
	}
	return template.HTML(out.String()) //nolint:gosec // What is not ours is escaped by inline.
}

// inline is markup within a paragraph.
func inline(text string) template.HTML {
	var out strings.Builder
	for i, part := range strings.Split(strings.Join(strings.Fields(text), " "), "`") {
		escaped := template.HTMLEscapeString(part)
		if i%2 == 1 {
			escaped = "<code>" + escaped + "</code>"
		}
		out.WriteString(escaped)
	}
	return template.HTML(out.String()) //nolint:gosec // Each part is escaped.
}
