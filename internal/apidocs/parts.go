package main

import "fmt"

// parameters are the parameters of an operation.
func (d *document) parameters(all []parameter) ([]field, error) {
	var fields []field
	for i := range all {
		_, meant, err := component(d.Components.Parameters, all[i].Ref, all[i])
		if err != nil {
			return nil, err
		}
		made, err := parameterField(meant.Name, &meant)
		if err != nil {
			return nil, err
		}
		fields = append(fields, made)
	}
	return fields, nil
}

// parameterField is a parameter or header as a row.
func parameterField(name string, p *parameter) (field, error) {
	made := field{
		Name: name, In: p.In, Type: typeOf(&p.Schema), Required: p.Required, Text: p.Description, Limits: limitsOf(&p.Schema),
	}
	switch example := p.Example.(type) {
	case nil:
		return made, nil
	case string:
		made.Example = example // in the form that is sent, not as JSON
		return made, nil
	}
	var err error
	made.Example, err = compact(p.Example)
	return made, err
}

// request returns the body of a request, nil if it has none.
func (d *document) request(asked *body) (*bodyView, error) {
	if asked == nil {
		return nil, nil //nolint:nilnil // An operation may have no body.
	}
	_, meant, err := component(d.Components.RequestBodies, asked.Ref, *asked)
	if err != nil {
		return nil, err
	}
	bodies, err := d.bodies(meant.Content)
	if err != nil {
		return nil, err
	}
	if len(bodies) != 1 {
		return nil, fmt.Errorf("its body has %d media types, and the page shows one", len(bodies))
	}
	bodies[0].Text, bodies[0].Required = meant.Description, meant.Required
	return &bodies[0], nil
}

// bodies are the media types of a body.
func (d *document) bodies(content ordered[media]) ([]bodyView, error) {
	var bodies []bodyView
	for i := range content {
		example, err := d.shownExample(&content[i].Value.Schema)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, bodyView{Media: content[i].Name, Type: typeOf(&content[i].Value.Schema), Example: example})
	}
	return bodies, nil
}

// responses are the responses of an operation.
func (d *document) responses(all ordered[response]) ([]responseView, error) {
	var shown []responseView
	for i := range all {
		_, meant, err := component(d.Components.Responses, all[i].Value.Ref, all[i].Value)
		if err != nil {
			return nil, err
		}
		made := responseView{Status: all[i].Name, Text: meant.Description}
		if made.Bodies, err = d.bodies(meant.Content); err != nil {
			return nil, err
		}
		for _, header := range meant.Headers {
			_, value, err := component(d.Components.Headers, header.Value.Ref, header.Value)
			if err != nil {
				return nil, err
			}
			row, err := parameterField(header.Name, &value)
			if err != nil {
				return nil, err
			}
			made.Headers = append(made.Headers, row)
		}
		shown = append(shown, made)
	}
	return shown, nil
}

// schemaView is a schema with a name.
func (d *document) schemaView(s *named[schema]) (schemaView, error) {
	fields, err := d.fieldsOf(&s.Value)
	if err != nil {
		return schemaView{}, err
	}
	example, err := d.shownExample(&s.Value)
	if err != nil {
		return schemaView{}, err
	}
	made := schemaView{
		Name: s.Name, Text: s.Value.Description, Fields: fields, Limits: limitsOf(&s.Value), Strict: s.Value.strict(), Example: example,
	}
	if len(fields) == 0 {
		made.Type = typeOf(&s.Value)
	}
	return made, nil
}
