"""The HTTP service: models that answer over the network, in the shapes of OpenAI, TEI and Cohere (extra `serve`)."""
