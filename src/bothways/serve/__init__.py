"""The HTTP service: models that answer over the network, with the APIs of OpenAI, TEI and Cohere (extra `serve`)."""
