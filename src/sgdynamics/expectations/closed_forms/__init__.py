"""Closed Gaussian expectations of activations, one file per family.

Each module of this package registers its family when it is imported, and the package imports all
of its modules: a new family is one new file.
"""

import importlib
import pkgutil

from sgdynamics.expectations.closed_forms.family import ClosedForms as ClosedForms
from sgdynamics.expectations.closed_forms.family import closed_forms_of as closed_forms_of
from sgdynamics.expectations.closed_forms.family import closed_noise_term as closed_noise_term
from sgdynamics.expectations.closed_forms.family import has_logistic_moments as has_logistic_moments
from sgdynamics.expectations.closed_forms.family import register as register
from sgdynamics.expectations.closed_forms.family import shared_closed_forms as shared_closed_forms

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
